-- A job that an event tells of and that is not there. No row: there is none.
select event.job_id
from tenure.events event
where not exists (select from tenure.jobs job where job.id = event.job_id)
limit 1
