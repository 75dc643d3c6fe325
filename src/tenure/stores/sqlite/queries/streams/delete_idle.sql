-- Removes streams without messages.
delete from tenure_streams
where aggregate in (select value from json_each(:aggregates))
    and not exists (select 1 from tenure_outbox message where message.aggregate = tenure_streams.aggregate)
