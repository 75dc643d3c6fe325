-- Deletes messages that were delivered up to a time and belong to no job that is kept: the log of a job has their digest.
delete from tenure_outbox
where id in (
        select id
        from tenure_outbox indexed by tenure_outbox_delivered
        where delivered_at is not null
            and delivered_at <= :before
            and not exists (select 1 from tenure_jobs job where job.id = tenure_outbox.job_id)
        order by delivered_at
        limit :limit
    )
