-- Deletes messages that were last delivered up to a time, are pending and dead for no endpoint, and belong to no job that
-- is kept: the log of a job has their digest. Their deliveries go with them, and streams without messages. Returns how many.
with doomed as materialized (
    select message.id, message.sequence, message.aggregate
    from (
        select distinct delivery.sequence
        from tenure.deliveries delivery
        where delivery.outcome = 'delivered' and delivery.at <= :before::timestamptz
    ) delivered
    join tenure.outbox message on message.sequence = delivered.sequence
    where
      -- part: unneeded
    order by message.sequence
    limit :limit
    for update of message skip locked
),
deliveries as (delete from tenure.deliveries delivery using doomed where delivery.sequence = doomed.sequence),
streams as (
    delete from tenure.streams stream
    using (
        select aggregate from tenure.streams
        where aggregate in (select doomed.aggregate from doomed)
          and not exists (
              select from tenure.outbox message
              where message.aggregate = streams.aggregate
                and message.sequence not in (select doomed.sequence from doomed)
          )
        for update skip locked
    ) idle
    where stream.aggregate = idle.aggregate
),
deleted as (delete from tenure.outbox message using doomed where message.id = doomed.id returning 1)
select count(*) from deleted
