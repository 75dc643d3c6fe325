-- Adds one job that has no keys: the commonest enqueue of programs that serve requests, by values instead of arrays.
-- Guard: an id in use makes the statement fail, and one that was deduplicated to another job before makes it write
-- nothing. In both cases the caller sends the request by `jobs/enqueue.sql`.
-- With a channel to notify, subscriptions to the queue are woken. No row means that nothing was written; else the
-- row has the time at which it was.
with clock as materialized (
    -- part: due_times
    where not exists (select from tenure.deduplicated_requests answer where answer.request_id = :id::uuid::text)
),
born as (
    insert into tenure.jobs (id, created_at, policy_id, priority, kind, queue, payload, correlation_id, trace,
        submitted_by, tags, partition_key, parent_id, redrive_of, awaited, status, rev, transition_count, attempt, failures,
        losses, lost,
        updated_at, due_at, timeout_at)
    select :id::uuid, clock.now, :policy::integer, :priority::smallint, :kind::text, :queue::text, :payload::text,
        :correlation_id::text, :trace::text, :submitted_by::text, :tags::text, :partition_key::text, :parent_id::uuid,
        :redrive_of::uuid, :awaited::boolean, 'queued', 1, 1, 0, 0, 0, false, clock.now, clock.due_at, clock.timeout_at
    from clock
),
logged as (
    insert into tenure.events (job_id, at, until_at, rev, attempt, version, commits, type, to_status, actor, cause,
        digest, detail)
    select :id::uuid, clock.now, clock.until_at, 1, 0, :version::smallint, false, 'enqueued', 'queued', :actor::text,
        :cause::text, :digest::text, :detail::text
    from clock
)
select clock.now, case when :notify::text is not null then pg_notify(:notify::text, :queue::text) end
from set_config('tenure.writer', 'store', true) writer
cross join clock
