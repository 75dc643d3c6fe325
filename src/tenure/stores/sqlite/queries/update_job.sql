-- Bring a job to where its new events lead. Matches the revision and the token that were decided upon; no row means
-- that it has moved on.
update tenure_jobs
set status = :status,
    rev = :rev,
    updated_at = :updated_at,
    attempt = :attempt,
    failures = :failures,
    losses = :losses,
    lost = :lost,
    due_at = :due_at,
    owner = :owner,
    token = :token,
    lease_expires_at = :lease_expires_at,
    heartbeat_deadline_at = :heartbeat_deadline_at,
    timeout_at = :timeout_at,
    started_at = :started_at,
    finished_at = :finished_at,
    committed_at = :committed_at,
    cancel_requested = :cancel_requested,
    progress = :progress,
    chain = :chain,
    was = :was,
    progress_message = :progress_message,
    reason = :reason,
    committed_result = :committed_result,
    result = :result,
    partial_result = :partial_result,
    error = :error,
    last_error = :last_error
where id = :id
    and rev = :rev_before
    and token is :token_before
