-- One artifact of a job. No row: the job has none of this name.
select name, media_type, body
from tenure_artifacts
where job_id = :job_id and name = :name
