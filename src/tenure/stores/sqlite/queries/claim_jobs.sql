-- Bring jobs that nobody has touched since they were added to where their claim leads: the same place for all of them.
-- Each matches the revision that was decided upon; fewer rows than given mean that one has moved on.
update tenure_jobs
set status = :status,
    was = :was,
    rev = :rev,
    chain = :chain,
    updated_at = :updated_at,
    attempt = :attempt,
    lost = :lost,
    owner = :owner,
    token = :token,
    lease_expires_at = :lease_expires_at,
    heartbeat_deadline_at = :heartbeat_deadline_at,
    timeout_at = :timeout_at,
    started_at = :started_at,
    progress = :progress,
    progress_message = :progress_message
where id in (values (:id))
    and rev = :rev_before
    and token is :token_before
