-- The schedules whose time comes first, behind a given time and name.
select name, kind, payload, policy_id, cron, timezone, missed, grace_seconds, queue, priority, dedupe_key,
    correlation_id, submitted_by, partition_key, tags, source, rev, next_at, last_at, paused_at, updated_at
from tenure_schedules
where next_at is not null
    and paused_at is null
    and (next_at, name) > (:after_at, :after_name)
order by next_at, name
limit :limit
