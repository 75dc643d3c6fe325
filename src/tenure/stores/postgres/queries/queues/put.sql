-- Replaces the limits of a queue, and records the actor. Returns the queue. No row: it has these limits already.
with shown as (
    insert into tenure.queues as queue (name, concurrency_max, key_concurrency_max, rate_count, rate_seconds,
        key_rate_count, key_rate_seconds, fair, updated_at)
    values (:name::text, :concurrency_max::integer, :key_concurrency_max::integer, :rate_count::integer,
        :rate_seconds::double precision, :key_rate_count::integer, :key_rate_seconds::double precision, :fair::boolean,
        tenure.clock())
    on conflict (name) do update
    set concurrency_max = excluded.concurrency_max, key_concurrency_max = excluded.key_concurrency_max,
        rate_count = excluded.rate_count, rate_seconds = excluded.rate_seconds,
        key_rate_count = excluded.key_rate_count, key_rate_seconds = excluded.key_rate_seconds,
        fair = excluded.fair, updated_at = excluded.updated_at
    where (queue.concurrency_max, queue.key_concurrency_max, queue.rate_count, queue.rate_seconds,
            queue.key_rate_count, queue.key_rate_seconds, queue.fair)
        is distinct from (excluded.concurrency_max, excluded.key_concurrency_max, excluded.rate_count,
            excluded.rate_seconds, excluded.key_rate_count, excluded.key_rate_seconds, excluded.fair)
    returning queue.*
),
noted as (
    insert into tenure.operator_log (actor, action, detail)
    select :actor::text, 'put_queue', :detail::text
    from shown
)
-- part: with_leased
