-- What a job has made, by name, without the bodies.
select job_id, name, attempt, media_type, bytes, at
from tenure.artifacts
where job_id = :job_id
order by name
