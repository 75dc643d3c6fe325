-- Write new jobs, after their enqueued events. Refused where an id, a request id or a live dedupe key is there already.
insert into tenure_jobs (
    id, kind, policy_id, queue, priority, dedupe_key, request_id, correlation_id, trace, submitted_by, partition_key,
    parent_id, redrive_of, status, rev, created_at, updated_at, due_at, timeout_at, tags, payload
)
values (
    :id, :kind, :policy_id, :queue, :priority, :dedupe_key, :request_id, :correlation_id, :trace, :submitted_by,
    :partition_key, :parent_id, :redrive_of, 'queued', 1, :created_at, :updated_at, :due_at, :timeout_at, :tags,
    :payload
)
