-- What these jobs have made, each job's by name, without the bodies.
select job_id, name, attempt, media_type, bytes, at
from tenure_artifacts
where job_id in (select value from json_each(:ids))
order by job_id, name
