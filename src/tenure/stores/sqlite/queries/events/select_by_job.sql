-- A page of one job's events, in the order of the log.
select
    event.position, job.correlation_id, job.trace,
    -- each event column: event.{}
from tenure_events event indexed by tenure_events_job
join tenure_jobs job on job.id = event.job_id
where event.job_id = :job_id
    and event.position > :after
    and (:types is null or event.type in (select value from json_each(:types)))
    and (:correlation_id is null or job.correlation_id = :correlation_id)
    and (:since is null or event.at >= :since)
    and (:until is null or event.at < :until)
order by event.rev
limit :limit
