-- The whole rows of these jobs, with their tokens. A job that is not there has no row.
select
    job.id, job.kind, job.policy_id, job.queue, job.priority, job.dedupe_key, job.request_id, job.correlation_id,
    job.trace, job.submitted_by, job.partition_key, job.parent_id, job.redrive_of, job.status, job.rev,
    job.created_at, job.updated_at, job.attempt, job.failures, job.losses, job.lost, job.due_at, job.owner,
    job.token, job.lease_expires_at, job.heartbeat_deadline_at, job.timeout_at, job.started_at, job.finished_at,
    job.committed_at, job.cancel_requested, job.progress, job.erased_at, job.tags, job.progress_message, job.reason,
    job.committed_result, job.result, job.partial_result, job.error, job.last_error, job.payload
from json_each(:ids) wanted
join tenure_jobs job on job.id = wanted.value
