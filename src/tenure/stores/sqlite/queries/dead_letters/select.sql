-- The dead letter of a job. No row: the job is not dead-lettered.
select
    -- each dead letter column: {}
from tenure_dead_letters
where job_id = :job_id
