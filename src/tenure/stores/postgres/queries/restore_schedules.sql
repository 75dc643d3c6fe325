-- Writes schedules as they stood.
insert into tenure.schedules (name, rev, kind, queue, priority, payload, policy_id, dedupe_key, correlation_id,
    submitted_by, partition_key, tags, cron, timezone, missed, grace_seconds, source, paused_at, next_at, last_at,
    updated_at)
select name, rev, kind, queue, priority, payload, policy_id, dedupe_key, correlation_id, submitted_by, partition_key,
    tags, cron, timezone, missed, grace_seconds, source, paused_at, next_at, last_at, updated_at
from json_populate_recordset(null::tenure.schedules, :rows::json)
