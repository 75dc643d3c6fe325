-- The number of jobs and of events. A claim and its start may be one row.
select
    (select count(*) from tenure_jobs),
    (select count(*) from tenure_events)
        + (select count(*) from tenure_events where type = 'claimed' and to_status = 'running')
