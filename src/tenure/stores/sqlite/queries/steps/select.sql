-- A page of the steps of a job, in the order of completion.
select
    -- each step column: {}
from tenure_steps
where job_id = :job_id and number > :after
order by number
limit :limit
