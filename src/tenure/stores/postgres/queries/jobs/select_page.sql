-- A page of jobs in the order of ids. Every filter that is given must match.
select job.*
from tenure.job_records job
where (:after::uuid is null or job.id > :after::uuid)
  -- part: job_filters
order by job.id
limit :limit
