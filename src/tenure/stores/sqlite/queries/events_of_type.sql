-- A page of the events of some types, in the order of the log. The inner query needs nothing but the index.
select
    event.position, event.job_id, event.rev, event.type, event.from_status, event.to_status, event.at,
    event.attempt, event.actor, event.request_id, event.cause, event.detail, event.digest, event.until_at,
    event.commits, event.version, job.correlation_id, job.trace
from tenure_events event
join tenure_jobs job on job.id = event.job_id
where event.position in (
    select typed.position
    from json_each(:types) wanted
    cross join tenure_events typed indexed by tenure_events_type on typed.type = wanted.value
    where typed.position > :after
        and typed.at >= :since
        and typed.at < :until
    order by typed.position
    limit :limit
)
order by event.position
