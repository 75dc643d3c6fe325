-- Empties the error in a job's dead letter.
update tenure_dead_letters
set last_error = 'null'
where job_id = :job_id
