-- Remember which job answered a request. Refused where the request was answered before.
insert into tenure_answers (request_id, digest, detail, job_id, at)
values (:request_id, :digest, :detail, :job_id, :at)
