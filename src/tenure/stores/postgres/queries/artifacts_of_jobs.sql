-- What these jobs have made, each job's by name, without the bodies.
select job_id, name, attempt, media_type, bytes, at
from tenure.artifacts
where job_id = any (:ids::uuid[])
order by job_id, name
