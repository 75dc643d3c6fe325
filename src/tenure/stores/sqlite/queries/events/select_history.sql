-- All events of these jobs, each job's in the order of revisions.
select
    event.position, job.correlation_id, job.trace,
    -- each event column: event.{}
from json_each(:ids) wanted
cross join tenure_events event on event.job_id = wanted.value
left join tenure_jobs job on job.id = event.job_id
order by event.job_id, event.rev
