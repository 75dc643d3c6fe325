-- Writes jobs in their last state, after their events and dead letters. The session must have said that it is an import.
-- Refused where a whole log does not lead to this state, and where an id, a request id or a live dedupe key is taken.
insert into tenure.jobs (id, created_at, policy_id, priority, kind, queue, payload, dedupe_key, request_id,
    correlation_id, trace, submitted_by, tags, partition_key, parent_id, redrive_of, status, previous_status, rev, transition_count, attempt,
    failures, losses, lost, cancel_requested, updated_at, due_at, token, lease_expires_at, heartbeat_deadline_at,
    timeout_at, started_at, finished_at, committed_at, erased_at, progress, owner, progress_message, committed_result,
    result, partial_result, error, last_error, reason)
select job.id, job.created_at, job.policy_id, job.priority, job.kind, job.queue, job.payload, job.dedupe_key,
    job.request_id, job.correlation_id, job.trace, job.submitted_by, job.tags, job.partition_key, job.parent_id,
    job.redrive_of, job.status, event.from_status, job.rev, 1, job.attempt, job.failures, job.losses, job.lost,
    job.cancel_requested, job.updated_at, job.due_at, job.token, job.lease_expires_at, job.heartbeat_deadline_at,
    job.timeout_at, job.started_at, job.finished_at, job.committed_at, job.erased_at, job.progress, job.owner,
    job.progress_message, job.committed_result, job.result, job.partial_result, job.error, job.last_error, job.reason
from json_populate_recordset(null::tenure.jobs, :rows::json) job
left join tenure.log event on event.job_id = job.id and event.rev = job.rev
