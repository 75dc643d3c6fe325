-- A page of the jobs of one correlation id, in the order of ids: those that have it, and the root that it names, which has
-- none. Every other filter that is given must match.
select job.*
from (
    select * from tenure.job_records where correlation_id = :correlation_id::text
    union all
    select * from tenure.job_records where id = :root::uuid and correlation_id is null
) job
where (:after::uuid is null or job.id > :after::uuid)
  -- part: job_filters
order by job.id
limit :limit
