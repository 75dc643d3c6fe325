-- Replaces a schedule.
-- Guard: its revision.
-- No row: it has changed since, or does not exist.
update tenure_schedules
set rev = rev + 1,
    kind = :kind,
    queue = :queue,
    priority = :priority,
    payload = :payload,
    policy_id = :policy_id,
    dedupe_key = :dedupe_key,
    correlation_id = :correlation_id,
    submitted_by = :submitted_by,
    partition_key = :partition_key,
    tags = :tags,
    cron = :cron,
    timezone = :timezone,
    missed = :missed,
    grace_seconds = :grace_seconds,
    source = :source,
    paused_at = iif(:paused, coalesce(paused_at, :at), null),
    next_at = :next_at,
    updated_at = :at
where name = :name
    and rev = :rev
