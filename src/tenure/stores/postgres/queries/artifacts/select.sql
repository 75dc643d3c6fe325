-- One artifact. No row: the job has none of this name.
select name, media_type, body
from tenure.artifacts
where job_id = :job_id and name = :name
