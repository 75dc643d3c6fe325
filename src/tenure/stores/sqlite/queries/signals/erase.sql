-- Empties the payloads of a job's signals.
update tenure_signals
set payload = 'null'
where job_id = :job_id
