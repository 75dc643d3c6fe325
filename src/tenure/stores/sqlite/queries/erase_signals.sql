-- Empty what a job was told.
update tenure_signals
set payload = 'null'
where job_id = :job_id
