-- Remember what a claim won. Refused where the request has won before.
insert into tenure_claims (request_id, body, job_ids, at)
values (:request_id, :body, :job_ids, :at)
