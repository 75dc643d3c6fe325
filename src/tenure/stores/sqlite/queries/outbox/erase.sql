-- Empties the messages of a job.
update tenure_outbox
set body = 'null', headers = null
where job_id = :job_id
