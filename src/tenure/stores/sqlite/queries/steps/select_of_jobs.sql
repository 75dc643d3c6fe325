-- The steps of these jobs, each job's in the order of completion.
select
    -- each step column: step.{}
from json_each(:ids) wanted
cross join tenure_steps step on step.job_id = wanted.value
order by step.job_id, step.number
