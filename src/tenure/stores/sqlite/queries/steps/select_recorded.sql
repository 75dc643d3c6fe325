-- The steps that are recorded under these keys of these jobs.
select
    -- each step column: step.{}
from json_each(:places) wanted
cross join tenure_steps step
    on step.job_id = json_extract(wanted.value, '$[0]') and step.key = json_extract(wanted.value, '$[1]')
