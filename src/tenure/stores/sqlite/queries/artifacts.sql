-- What a job has made, by name, without the bodies.
select name, attempt, media_type, bytes, at
from tenure_artifacts
where job_id = :job_id
order by name
