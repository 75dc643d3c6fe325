-- Claims jobs at revision 1 that share a policy: the new state is the same for all.
-- Guard: the revision and the token that the claim was decided upon.
-- Fewer rows than given: a row has changed since.
update tenure_jobs
set status = :status,
    previous_status = :previous_status,
    rev = :rev,
    transition_count = :transition_count,
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
