-- The job that a request was deduplicated to, and the digest of the request. No row: it was not deduplicated.
select job_id, digest, detail
from tenure_deduplicated_requests
where request_id = :request_id
