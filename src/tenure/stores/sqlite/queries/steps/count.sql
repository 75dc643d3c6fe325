-- How many steps each of these jobs has. No row: it has none.
select step.job_id, count(*)
from json_each(:ids) wanted
cross join tenure_steps step on step.job_id = wanted.value
group by step.job_id
