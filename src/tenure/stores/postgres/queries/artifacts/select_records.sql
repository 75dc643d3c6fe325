-- The artifacts of these jobs without their bodies, each job's by name.
select job_id, name, attempt, media_type, bytes, at
from tenure.artifacts
where job_id = any (:ids::uuid[])
order by job_id, name
