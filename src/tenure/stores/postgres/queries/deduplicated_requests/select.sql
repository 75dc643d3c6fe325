-- The enqueue requests that were deduplicated to these jobs, each job's by request id.
select * from tenure.deduplicated_requests where job_id = any (:ids::uuid[]) order by job_id, request_id
