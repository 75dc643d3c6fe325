-- A page of schedules, in the order of their names, after the given one.
select
    name, rev, kind, queue, priority, payload, policy_id, dedupe_key, correlation_id, submitted_by, partition_key, tags,
    cron, timezone, missed, grace_seconds, source, paused_at, next_at, last_at, updated_at
from tenure.schedules
where name > :name
order by name
limit :limit
