from tenure_outbox message
where exists (
        select 1 from tenure_deliveries delivery
        where delivery.sequence = message.sequence and delivery.outcome = 'delivered' and delivery.at <= :before
    )
    and not exists (select 1 from tenure_jobs job where job.id = message.job_id)
    and not exists (
        select 1 from tenure_deliveries delivery
        where delivery.sequence = message.sequence
            and ((delivery.outcome = 'dead' and delivery.handled_at is null) or delivery.at > :before)
    )
    and not exists (
        select 1 from tenure_pending pending
        where (pending.only_sequence = 0 and pending.aggregate = message.aggregate and pending.position < message.sequence)
            or pending.only_sequence = message.sequence
    )
