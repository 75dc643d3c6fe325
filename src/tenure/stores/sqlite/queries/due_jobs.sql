-- The jobs of one queue and priority that are due, in the order of claiming; those set aside are left out. Whoever asks
-- reads as many rows as they want, and no more.
select
    job.id, job.kind, job.policy_id, job.queue, job.priority, job.dedupe_key, job.request_id, job.correlation_id,
    job.trace, job.submitted_by, job.partition_key, job.parent_id, job.redrive_of, job.status, job.rev,
    job.created_at, job.updated_at, job.attempt, job.failures, job.losses, job.lost, job.due_at, job.owner,
    job.token, job.lease_expires_at, job.heartbeat_deadline_at, job.timeout_at, job.started_at, job.finished_at,
    job.committed_at, job.cancel_requested, job.progress, job.erased_at, job.tags, job.progress_message, job.reason,
    job.committed_result, job.result, job.partial_result, job.error, job.last_error, job.payload
from tenure_jobs job indexed by tenure_jobs_ready
where job.owner is null
    and job.finished_at is null
    and job.queue = :queue
    and job.priority = :priority
    and job.due_at <= :now
    and job.kind in (select value from json_each(:kinds))
    and job.id not in (select value from json_each(:set_aside))
order by job.due_at, job.id
