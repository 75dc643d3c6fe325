-- The last decision of this name of a run. No row: there is none.
select step.result
from tenure.steps step
where step.job_id = :job_id::uuid and step.kind = 'decision' and step.name = :name::text
order by step.number desc
limit 1
