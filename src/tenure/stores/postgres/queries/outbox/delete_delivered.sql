-- Deletes messages that were delivered up to a time and belong to no job that is kept: the log of a job has their digest.
-- Returns how many.
with doomed as materialized (
    select message.id
    from tenure.outbox message
    where message.delivered_at <= :before::timestamptz
      and not exists (select from tenure.jobs job where job.id = message.job_id)
    order by message.delivered_at
    limit :limit
    for update skip locked
),
deleted as (delete from tenure.outbox message using doomed where message.id = doomed.id returning 1)
select count(*) from deleted
