-- Adds one job that has no keys, is due at once, and has no deadlines, tags or links to other jobs: what most programs that
-- serve requests enqueue. Its columns and expressions are prepared for every execution, so there are few of them.
-- Guard: as in `jobs/enqueue_one`.
-- No row means that nothing was written; else the row has the time at which it was.
with clock as materialized (
    select tenure.clock() as now, set_config('tenure.writer', 'store', true) as writer
    where not exists (select from tenure.deduplicated_requests answer where answer.request_id = :id::uuid::text)
),
born as (
    insert into tenure.jobs (id, created_at, policy_id, priority, kind, queue, payload, correlation_id, trace,
        submitted_by, partition_key, status, rev, transition_count, attempt, failures, losses, lost, updated_at, due_at)
    select :id::uuid, clock.now, :policy::integer, :priority::smallint, :kind::text, :queue::text, :payload::text,
        :correlation_id::text, :trace::text, :submitted_by::text, :partition_key::text, 'queued', 1, 1, 0, 0, 0, false,
        clock.now, clock.now
    from clock
),
logged as (
    insert into tenure.events (job_id, at, rev, attempt, version, commits, type, to_status, actor, digest)
    select :id::uuid, clock.now, 1, 0, :version::smallint, false, 'enqueued', 'queued', :actor::text, :digest::text
    from clock
)
select clock.now, case when :notify::text is not null then pg_notify(:notify::text, :queue::text) end
from clock
