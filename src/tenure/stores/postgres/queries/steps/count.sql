-- How many steps each of these jobs has. No row: it has none.
select step.job_id, count(*) as count
from tenure.steps step
where step.job_id = any (:ids::uuid[])
group by step.job_id
