-- A page of the rows that have the events of all jobs of one correlation id, in the order of the log: of those that have
-- it, and of the root that it names, which has none.
select
    event.position, job.correlation_id, job.trace,
    -- each event column: event.{}
from (
    select id, correlation_id, trace
    from tenure_jobs indexed by tenure_jobs_correlation
    where correlation_id is not null and correlation_id = :correlation_id
    union all
    select id, correlation_id, trace from tenure_jobs where id = :correlation_id and correlation_id is null
) job
cross join tenure_events event indexed by tenure_events_job on event.job_id = job.id
where event.position > :after
    and (:types is null or event.type in (select value from json_each(:types)))
    and (not :starts_alone or event.type <> 'claimed' or event.to_status = 'running')
    and (:since is null or event.at >= :since)
    and (:until is null or event.at < :until)
order by event.position
limit :limit
