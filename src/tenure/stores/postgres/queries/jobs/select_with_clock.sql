-- The rows of these jobs with their tokens, and the database's clock.
select job.*, tenure.clock() as now
from tenure.jobs job
where job.id = any (:ids::uuid[])
