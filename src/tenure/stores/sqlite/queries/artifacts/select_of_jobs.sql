-- The artifacts of these jobs with their bodies.
select job_id, name, media_type, attempt, bytes, body
from json_each(:ids) wanted
cross join tenure_artifacts artifact on artifact.job_id = wanted.value
