-- The requests that these jobs answered for another, each job's in the order of the requests' ids.
select request_id, job_id, digest, detail, at
from tenure.deduplicated_requests
where job_id = any (:ids::uuid[])
order by job_id, request_id
