-- What these requests have written before, by job and request id. No row means that they are new.
select
    event.position, event.job_id, event.rev, event.type, event.from_status, event.to_status, event.at,
    event.attempt, event.actor, event.request_id, event.cause, event.detail, event.digest, event.until_at,
    event.commits, event.version, job.correlation_id, job.trace
from json_each(:requests) wanted
cross join tenure_events event
    on event.job_id = json_extract(wanted.value, '$[0]')
    and event.request_id = json_extract(wanted.value, '$[1]')
join tenure_jobs job on job.id = event.job_id
order by event.job_id, event.rev
