-- All events of these jobs, each job's in the order of revisions.
select
    event.position, event.job_id, event.rev, event.type, event.from_status, event.to_status, event.at,
    event.attempt, event.actor, event.request_id, event.cause, event.detail, event.digest, event.until_at,
    event.commits, event.version, job.correlation_id, job.trace
from json_each(:ids) wanted
cross join tenure_events event on event.job_id = wanted.value
left join tenure_jobs job on job.id = event.job_id
order by event.job_id, event.rev
