-- The claim that this request won before. No row means that it is new, or won nothing.
select body, job_ids
from tenure_claims
where request_id = :request_id
