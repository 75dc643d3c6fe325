-- All events of some jobs, in the order of revisions.
select event.*, job.correlation_id, job.trace
from tenure.log event
left join tenure.jobs job on job.id = event.job_id
where event.job_id = any (:ids::uuid[])
order by event.job_id, event.rev
