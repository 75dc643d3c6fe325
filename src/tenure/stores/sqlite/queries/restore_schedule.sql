-- Write a schedule as it stood. Refused where there is one of this name.
insert into tenure_schedules (
    name, rev, kind, queue, priority, payload, policy_id, dedupe_key, correlation_id, submitted_by, partition_key, tags,
    cron, timezone, missed, grace_seconds, source, paused_at, next_at, last_at, updated_at
)
values (
    :name, :rev, :kind, :queue, :priority, :payload, :policy_id, :dedupe_key, :correlation_id, :submitted_by,
    :partition_key, :tags, :cron, :timezone, :missed, :grace_seconds, :source, :paused_at, :next_at, :last_at,
    :updated_at
)
