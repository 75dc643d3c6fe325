-- Write a job in its last state, after its events and its dead letter. Refused outside of an import, where the whole log
-- does not lead to this state, and where an id, a request id or a live dedupe key is there already.
insert into tenure_jobs (
    id, kind, policy_id, queue, priority, dedupe_key, request_id, correlation_id, trace, submitted_by, partition_key,
    parent_id, redrive_of, status, rev, created_at, updated_at, attempt, failures, losses, lost, due_at, owner, token,
    lease_expires_at, heartbeat_deadline_at, timeout_at, started_at, finished_at, committed_at, cancel_requested,
    progress, erased_at, chain, was, tags, progress_message, reason, committed_result, result, partial_result, error,
    last_error, payload
)
values (
    :id, :kind, :policy_id, :queue, :priority, :dedupe_key, :request_id, :correlation_id, :trace, :submitted_by,
    :partition_key, :parent_id, :redrive_of, :status, :rev, :created_at, :updated_at, :attempt, :failures, :losses,
    :lost, :due_at, :owner, :token, :lease_expires_at, :heartbeat_deadline_at, :timeout_at, :started_at, :finished_at,
    :committed_at, :cancel_requested, :progress, :erased_at, 1,
    (select from_status from tenure_events where job_id = :id and rev = :rev),
    :tags, :progress_message, :reason, :committed_result, :result, :partial_result, :error, :last_error, :payload
)
