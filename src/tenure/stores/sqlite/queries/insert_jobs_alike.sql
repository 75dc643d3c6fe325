-- Write new jobs, alike in all but id and payload, after their enqueued events. Refused where an id is there already.
with given (id, payload) as (
    values (:id, :payload)
)
insert into tenure_jobs (
    id, kind, policy_id, queue, priority, dedupe_key, request_id, correlation_id, trace, submitted_by, partition_key,
    parent_id, redrive_of, status, rev, created_at, updated_at, due_at, timeout_at, tags, payload
)
select
    given.id, :kind, :policy_id, :queue, :priority, :dedupe_key, :request_id, :correlation_id, :trace, :submitted_by,
    :partition_key, :parent_id, :redrive_of, 'queued', 1, :created_at, :updated_at, :due_at, :timeout_at, :tags,
    given.payload
from given
