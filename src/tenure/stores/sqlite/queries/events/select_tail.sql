-- The log after a position, in its order. There is one writer, so no lower position commits later.
select
    event.position, job.correlation_id, job.trace,
    -- each event column: event.{}
from tenure_events event
left join tenure_jobs job on job.id = event.job_id
where event.position > :after
    and (:since is null or event.at >= :since)
    and (:until is null or event.at < :until)
order by event.position
limit :limit
