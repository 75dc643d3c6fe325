-- Complete jobs that were claimed together and not committed before, each with its result. Each matches the revision and
-- the token that were decided upon, under a lease that still runs; fewer rows than given mean that one does not.
with done (id, result) as (
    values (:id, :result)
)
update tenure_jobs
set status = :status,
    was = :was,
    rev = :rev,
    chain = :chain,
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
