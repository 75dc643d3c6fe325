-- Completes jobs that were claimed together and are not committed, each with its result.
-- Guard: the revision and the token that the change was decided upon, and a lease that has not expired.
-- Fewer rows than given: the guard did not hold for one of them.
with done (id, result) as (
    values (:id, :result)
)
update tenure_jobs
set status = :status,
    previous_status = :previous_status,
    rev = :rev,
    transition_count = :transition_count,
    updated_at = :updated_at,
    finished_at = :finished_at,
    committed_at = :committed_at,
    lost = :lost,
    owner = :owner,
    token = :token,
    lease_expires_at = :lease_expires_at,
    heartbeat_deadline_at = :heartbeat_deadline_at,
    timeout_at = :timeout_at,
    result = done.result
from done
where tenure_jobs.id = done.id
    and tenure_jobs.rev = :rev_before
    and tenure_jobs.token is :token_before
    and tenure_jobs.lease_expires_at > :updated_at
