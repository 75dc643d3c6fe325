-- A page of the events of some types within a time, in the order of (time, job, revision).
select event.*, job.correlation_id, job.trace
from tenure.log event
left join tenure.jobs job on job.id = event.job_id
where event.at >= :since::timestamptz
  and event.at < :until::timestamptz
  and (:types::text[] is null or event.type = any (:types::text[]))
  and (event.at, event.job_id, event.rev) > (:since::timestamptz, :job_id::uuid, :rev::integer)
order by event.at, event.job_id, event.rev
limit :limit
