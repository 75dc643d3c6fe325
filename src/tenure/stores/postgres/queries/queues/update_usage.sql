-- Stores for the next claim the rate usage of a queue and of its partition keys, and the key that was served last.
-- Guard: the queue is locked. Usage of keys that no longer counts is deleted, a few rows at a time.
with noted as (
    update tenure.queues queue
    set last_key = coalesce(:last_key::text, queue.last_key), usage = coalesce(:usage::text, queue.usage)
    where queue.name = :queue::text
    returning queue.name
),
kept as (
    insert into tenure.rate_usage (queue, key, usage, until_at)
    select noted.name, one.key, one.usage, one.until_at
    from noted, unnest(:keys::text[], :usages::text[], :untils::timestamptz[]) one(key, usage, until_at)
    on conflict (queue, key) do update set usage = excluded.usage, until_at = excluded.until_at
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
