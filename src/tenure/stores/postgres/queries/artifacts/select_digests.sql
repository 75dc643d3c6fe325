-- The artifacts of these jobs with the SHA-256 of their bodies, as `verify` compares them with the log.
select job_id, name, media_type, attempt, bytes, sha256(body) as body_sha256
from tenure.artifacts
where job_id = any (:ids::uuid[])
