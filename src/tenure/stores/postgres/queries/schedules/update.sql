-- Replaces a schedule, and records the actor.
-- Guard: its revision.
-- No row: it has changed since, or does not exist.
with written as (
    update tenure.schedules schedule
    set rev = schedule.rev + 1, kind = :kind::text, queue = :queue::text, priority = :priority::smallint,
        payload = :payload::text, policy_id = :policy_id::integer, dedupe_key = :dedupe_key::text,
        correlation_id = :correlation_id::text, submitted_by = :submitted_by::text,
        partition_key = :partition_key::text, tags = :tags::text, cron = :cron::text, timezone = :timezone::text,
        missed = :missed::text, grace_seconds = :grace_seconds::double precision, source = :source::text,
        paused_at = case when :paused::boolean then coalesce(schedule.paused_at, clock.now) end,
        next_at = :next_at::timestamptz, updated_at = clock.now
    from (select tenure.clock() as now) clock
    where schedule.name = :name::text
      and schedule.rev = :rev::integer
    returning schedule.*
),
noted as (
    insert into tenure.operator_log (actor, action, detail)
    select :actor::text, 'schedule', :detail::text from written
)
select * from written
