-- The log after a position, in its order. There is one writer, so nothing commits late with a lower number.
select
    event.position, event.job_id, event.rev, event.type, event.from_status, event.to_status, event.at,
    event.attempt, event.actor, event.request_id, event.cause, event.detail, event.digest, event.until_at,
    event.commits, event.version, job.correlation_id, job.trace
from tenure_events event
left join tenure_jobs job on job.id = event.job_id
where event.position > :after
    and (:since is null or event.at >= :since)
    and (:until is null or event.at < :until)
order by event.position
limit :limit
