-- How many jobs and events there are.
select (select count(*) from tenure_jobs), (select count(*) from tenure_events)
