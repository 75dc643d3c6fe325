-- The artifacts of a job by name, without the bodies.
select job_id, name, attempt, media_type, bytes, at
from tenure_artifacts
where job_id = :job_id
order by name
