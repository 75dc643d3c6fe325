-- Empties the content of a job that has ended.
update tenure_jobs
set payload = 'null',
    tags = null,
    result = null,
    partial_result = null,
    error = null,
    last_error = null,
    progress = null,
    progress_message = null,
    erased_at = :at
where id = :job_id
