-- How many messages were delivered up to a time and belong to no job that is kept.
select count(*)
from tenure.outbox message
where message.delivered_at <= :before::timestamptz
  and not exists (select from tenure.jobs job where job.id = message.job_id)
