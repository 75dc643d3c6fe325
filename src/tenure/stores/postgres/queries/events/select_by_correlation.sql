-- A page of the events of all jobs of one correlation id, in the order of (job, revision).
select event.*, job.correlation_id, job.trace
from tenure.jobs job
join tenure.log event on event.job_id = job.id
where job.correlation_id = :correlation_id::text
  and (event.job_id, event.rev) > (:job_id::uuid, :rev::integer)
  and (:types::text[] is null or event.type = any (:types::text[]))
  and (:since::timestamptz is null or event.at >= :since::timestamptz)
  and (:until::timestamptz is null or event.at < :until::timestamptz)
order by event.job_id, event.rev
limit :limit
