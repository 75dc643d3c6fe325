-- A job id that has events and no job. No row: every event has its job.
select event.job_id
from tenure_events event
where not exists (select 1 from tenure_jobs job where job.id = event.job_id)
limit 1
