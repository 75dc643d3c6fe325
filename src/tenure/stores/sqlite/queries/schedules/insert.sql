-- Inserts a schedule.
-- Guard: the name is free. No row: it is not.
insert into tenure_schedules (
    name, rev, kind, queue, priority, payload, policy_id, dedupe_key, correlation_id, submitted_by, partition_key, tags,
    cron, timezone, missed, grace_seconds, source, paused_at, next_at, updated_at
)
values (
    :name, 1, :kind, :queue, :priority, :payload, :policy_id, :dedupe_key, :correlation_id, :submitted_by,
    :partition_key, :tags, :cron, :timezone, :missed, :grace_seconds, :source, iif(:paused, :at, null), :next_at, :at
)
on conflict (name) do nothing
