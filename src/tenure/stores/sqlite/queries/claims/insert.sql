-- Records which jobs a claim took. Refused where the request id is in use.
insert into tenure_claims (request_id, body, job_ids, at)
values (:request_id, :body, :job_ids, :at)
