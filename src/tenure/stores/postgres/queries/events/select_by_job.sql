-- A page of one job's events, in the order of revisions.
select event.*, job.correlation_id, job.trace
from tenure.log event
left join tenure.jobs job on job.id = event.job_id
where event.job_id = :job_id::uuid
  and event.rev > :rev::integer
  and (:types::text[] is null or event.type = any (:types::text[]))
  and (:since::timestamptz is null or event.at >= :since::timestamptz)
  and (:until::timestamptz is null or event.at < :until::timestamptz)
order by event.rev
limit :limit
