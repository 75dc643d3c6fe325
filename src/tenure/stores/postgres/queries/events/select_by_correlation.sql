-- A page of the events of all jobs of one correlation id, in the order of (job, revision): of those that have it, and of
-- the root that it names, which has none.
select event.*, job.correlation_id, job.trace
from (
    select id, correlation_id, trace from tenure.jobs where correlation_id = :correlation_id::text
    union all
    select id, correlation_id, trace from tenure.jobs where id = :root::uuid and correlation_id is null
) job
join tenure.log event on event.job_id = job.id
where (event.job_id, event.rev) > (:job_id::uuid, :rev::integer)
  and (:types::text[] is null or event.type = any (:types::text[]))
  and (:since::timestamptz is null or event.at >= :since::timestamptz)
  and (:until::timestamptz is null or event.at < :until::timestamptz)
order by event.job_id, event.rev
limit :limit
