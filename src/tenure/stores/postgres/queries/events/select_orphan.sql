-- A job that has events and no row. No row: there is none.
select event.job_id
from tenure.events event
where not exists (select from tenure.jobs job where job.id = event.job_id)
limit 1
