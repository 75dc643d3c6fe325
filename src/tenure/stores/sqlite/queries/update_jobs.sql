-- Bring jobs to where their new events lead. Each matches the revision and the token that were decided upon; fewer rows
-- than given mean that one has moved on.
with changed (
    status, rev, updated_at, attempt, failures, losses, lost, due_at, owner, token, lease_expires_at,
    heartbeat_deadline_at, timeout_at, started_at, finished_at, committed_at, cancel_requested, progress, chain, was,
    progress_message, reason, committed_result, result, partial_result, error, last_error, id, rev_before, token_before
) as (
    values (
        :status, :rev, :updated_at, :attempt, :failures, :losses, :lost, :due_at, :owner, :token, :lease_expires_at,
        :heartbeat_deadline_at, :timeout_at, :started_at, :finished_at, :committed_at, :cancel_requested, :progress,
        :chain, :was, :progress_message, :reason, :committed_result, :result, :partial_result, :error, :last_error,
        :id, :rev_before, :token_before
    )
)
update tenure_jobs
set status = changed.status,
    rev = changed.rev,
    updated_at = changed.updated_at,
    attempt = changed.attempt,
    failures = changed.failures,
    losses = changed.losses,
    lost = changed.lost,
    due_at = changed.due_at,
    owner = changed.owner,
    token = changed.token,
    lease_expires_at = changed.lease_expires_at,
    heartbeat_deadline_at = changed.heartbeat_deadline_at,
    timeout_at = changed.timeout_at,
    started_at = changed.started_at,
    finished_at = changed.finished_at,
    committed_at = changed.committed_at,
    cancel_requested = changed.cancel_requested,
    progress = changed.progress,
    chain = changed.chain,
    was = changed.was,
    progress_message = changed.progress_message,
    reason = changed.reason,
    committed_result = changed.committed_result,
    result = changed.result,
    partial_result = changed.partial_result,
    error = changed.error,
    last_error = changed.last_error
from changed
where tenure_jobs.id = changed.id
    and tenure_jobs.rev = changed.rev_before
    and tenure_jobs.token is changed.token_before
