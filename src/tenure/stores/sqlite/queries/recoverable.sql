-- Jobs that need recovery, in the order of ids: held ones whose lease, heartbeats or time ran out, queued ones whose
-- time is up, and stalled ones that were lost or are committed. Whoever asks reads as many rows as they want,
-- and no more.
select
    job.id, job.kind, job.policy_id, job.queue, job.priority, job.dedupe_key, job.request_id, job.correlation_id,
    job.trace, job.submitted_by, job.partition_key, job.parent_id, job.redrive_of, job.status, job.rev,
    job.created_at, job.updated_at, job.attempt, job.failures, job.losses, job.lost, job.due_at, job.owner,
    job.token, job.lease_expires_at, job.heartbeat_deadline_at, job.timeout_at, job.started_at, job.finished_at,
    job.committed_at, job.cancel_requested, job.progress, job.erased_at, job.tags, job.progress_message, job.reason,
    job.committed_result, job.result, job.partial_result, job.error, job.last_error, job.payload
from tenure_jobs job
where job.id in (
    select held.id
    from tenure_jobs held indexed by tenure_jobs_held
    where (held.owner is not null or held.status = 'stalled')
        and held.id > :after
        and case held.status
            when 'stalled' then held.lost or held.committed_at is not null
            else held.lease_expires_at <= :now
                or held.heartbeat_deadline_at <= :now
                or held.timeout_at <= :now
        end
    union all
    select overdue.id
    from tenure_jobs overdue indexed by tenure_jobs_overdue
    where overdue.status = 'queued'
        and overdue.timeout_at is not null
        and overdue.timeout_at <= :now
        and overdue.id > :after
)
order by job.id
