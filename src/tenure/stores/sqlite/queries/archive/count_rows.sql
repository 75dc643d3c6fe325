-- The number of jobs and of events.
select (select count(*) from tenure_jobs), (select count(*) from tenure_events)
