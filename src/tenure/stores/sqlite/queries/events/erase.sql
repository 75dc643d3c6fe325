-- Empties the errors and messages in a job's events. Reasons stay, as they are part of its history.
update tenure_events
set detail = null
where job_id = :job_id
    and type in ('progress', 'retry_scheduled', 'failed', 'dead_lettered')
    and detail is not null
