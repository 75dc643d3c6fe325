-- A page of the jobs that have this parent, in the order of ids.
select job.*
from tenure.job_records job
where job.parent_id = :parent_id::uuid
  and job.id > :after::uuid
  and (not :live_only::boolean or job.finished_at is null)
order by job.id
limit :limit
