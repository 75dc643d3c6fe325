-- Inserts a schedule, and records the actor.
-- Guard: the name is free.
-- No row: it is not.
with written as (
    insert into tenure.schedules (name, rev, kind, queue, priority, payload, policy_id, dedupe_key, correlation_id,
        submitted_by, partition_key, tags, cron, timezone, missed, grace_seconds, source, paused_at, next_at, updated_at)
    select :name::text, 1, :kind::text, :queue::text, :priority::smallint, :payload::text, :policy_id::integer,
        :dedupe_key::text, :correlation_id::text, :submitted_by::text, :partition_key::text, :tags::text, :cron::text,
        :timezone::text, :missed::text, :grace_seconds::double precision, :source::text,
        case when :paused::boolean then clock.now end, :next_at::timestamptz, clock.now
    from (select tenure.clock() as now) clock
    on conflict (name) do nothing
    returning *
),
noted as (
    insert into tenure.operator_log (actor, action, detail)
    select :actor::text, 'schedule', :detail::text from written
)
select * from written
