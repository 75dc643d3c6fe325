-- The last decision of this name of a run. No row: there is none.
select step.result
from tenure_steps step
where step.job_id = :job_id and step.kind = 'decision' and step.name = :name
order by step.number desc
limit 1
