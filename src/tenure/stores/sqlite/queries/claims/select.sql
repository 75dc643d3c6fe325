-- The claim of a request id. No row: the request is new, or took no job.
select body, job_ids
from tenure_claims
where request_id = :request_id
