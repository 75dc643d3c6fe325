-- Schedules in the order of their names: the one of a name, or those behind one.
select name, kind, payload, policy_id, cron, timezone, missed, grace_seconds, queue, priority, dedupe_key,
    correlation_id, submitted_by, partition_key, tags, source, rev, next_at, last_at, paused_at, updated_at
from tenure_schedules
where (:name is null or name = :name)
    and name > :after
order by name
limit :limit
