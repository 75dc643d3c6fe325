-- Adds jobs that have no keys and differ only in id and payload: the most frequent enqueue of batches, by one
-- insert.
-- Guard: an id in use makes the whole statement fail, and one that was deduplicated to another job before makes it
-- write nothing. In both cases the caller sends the requests by `jobs/enqueue.sql`.
-- With a channel to notify, subscriptions to the queue are woken. No row means that nothing was written; else the
-- row has the time at which all were.
with given as materialized (
    -- Payloads that are all the same are sent once.
    select given.id, coalesce(given.payload, (:payloads::text[])[1]) as payload,
        coalesce(given.digest, (:digests::text[])[1]) as digest
    from unnest(:ids::uuid[], :payloads::text[], :digests::text[]) as given(id, payload, digest)
),
clock as materialized (
    -- part: due_times
    where not exists (select from tenure.deduplicated_requests)
       or not exists (select from given join tenure.deduplicated_requests answer on answer.request_id = given.id::text)
),
born as (
    insert into tenure.jobs (id, created_at, policy_id, priority, kind, queue, payload, correlation_id, trace,
        submitted_by, tags, partition_key, parent_id, redrive_of, awaited, status, rev, transition_count, attempt, failures,
        losses, lost,
        updated_at, due_at, timeout_at)
    select given.id, clock.now, :policy::integer, :priority::smallint, :kind::text, :queue::text, given.payload,
        :correlation_id::text, :trace::text, :submitted_by::text, :tags::text, :partition_key::text, :parent_id::uuid,
        :redrive_of::uuid, :awaited::boolean, 'queued', 1, 1, 0, 0, 0, false, clock.now, clock.due_at, clock.timeout_at
    from given
    cross join clock
),
logged as (
    insert into tenure.events (job_id, at, until_at, rev, attempt, version, commits, type, to_status, actor, cause,
        digest, detail)
    select given.id, clock.now, clock.until_at, 1, 0, :version::smallint, false, 'enqueued', 'queued', :actor::text,
        :cause::text, given.digest, :detail::text
    from given
    cross join clock
)
select clock.now, case when :notify::text is not null then pg_notify(:notify::text, :queue::text) end
from set_config('tenure.writer', 'store', true) writer
cross join clock
