-- Records the job that a deduplicated request returned. Refused where the request id is in use.
insert into tenure_deduplicated_requests (request_id, digest, detail, job_id, at)
values (:request_id, :digest, :detail, :job_id, :at)
