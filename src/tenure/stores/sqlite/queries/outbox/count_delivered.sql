-- How many messages were delivered up to a time and belong to no job that is kept.
select count(*)
from tenure_outbox indexed by tenure_outbox_delivered
where delivered_at is not null
    and delivered_at <= :before
    and not exists (select 1 from tenure_jobs job where job.id = tenure_outbox.job_id)
