-- The job that answered this request before, and what was asked. No row means that none did.
select job_id, digest, detail
from tenure_answers
where request_id = :request_id
