-- A job that an event tells of and that is not there. No row: there is none.
select event.job_id
from tenure_events event
where not exists (select 1 from tenure_jobs job where job.id = event.job_id)
limit 1
