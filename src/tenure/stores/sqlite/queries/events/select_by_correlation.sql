-- A page of the events of all jobs of one correlation id, in the order of the log.
select
    event.position, job.correlation_id, job.trace,
    -- each event column: event.{}
from tenure_jobs job indexed by tenure_jobs_correlation
cross join tenure_events event indexed by tenure_events_job on event.job_id = job.id
where job.correlation_id is not null
    and job.correlation_id = :correlation_id
    and event.position > :after
    and (:types is null or event.type in (select value from json_each(:types)))
    and (:since is null or event.at >= :since)
    and (:until is null or event.at < :until)
order by event.position
limit :limit
