-- Records for the next claim what a claim within limits has used of its rates, and which partition was served last. Guard: the queue is locked. What keys
-- have spent is forgotten, a few rows at a time, once its time is over.
with noted as (
    update tenure.queues queue
    set turn = coalesce(:turn::text, queue.turn), spent = coalesce(:spent::text, queue.spent)
    where queue.name = :queue::text
    returning queue.name
),
kept as (
    insert into tenure.rate_usage (queue, key, spent, until_at)
    select noted.name, one.key, one.spent, one.until_at
    from noted, unnest(:keys::text[], :spents::text[], :untils::timestamptz[]) one(key, spent, until_at)
    on conflict (queue, key) do update set spent = excluded.spent, until_at = excluded.until_at
),
forgotten as (
    delete from tenure.rate_usage old
    where old.queue = :queue::text
      and old.key in (
        select lapsed.key
        from tenure.rate_usage lapsed
        where lapsed.queue = :queue::text and lapsed.until_at <= tenure.clock() and lapsed.key <> all (:keys::text[])
        order by lapsed.until_at
        limit 100
      )
)
select count(*) from noted
