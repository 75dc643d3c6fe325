-- Pauses a queue, and records the actor. Returns the queue. No row: it is paused already.
with shown as (
    insert into tenure.queues as queue (name, paused_at, updated_at)
    values (:name::text, tenure.clock(), tenure.clock())
    on conflict (name) do update
    set paused_at = excluded.paused_at, updated_at = excluded.updated_at
    where queue.paused_at is null
    returning queue.*
),
noted as (
    insert into tenure.operator_log (actor, action, detail)
    select :actor::text, 'pause_queue', :detail::text
    from shown
)
-- part: with_leased
