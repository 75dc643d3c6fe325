-- Empties the steps of a job. Their digests stay.
update tenure_steps
set result = null,
    error = null,
    undo = null
where job_id = :job_id
