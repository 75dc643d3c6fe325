-- A page of jobs, oldest first, after the given id. What is null does not matter.
select
    job.id, job.kind, job.policy_id, job.queue, job.priority, job.dedupe_key, job.request_id, job.correlation_id,
    job.trace, job.submitted_by, job.partition_key, job.parent_id, job.redrive_of, job.status, job.rev,
    job.created_at, job.updated_at, job.attempt, job.failures, job.losses, job.lost, job.due_at, job.owner,
    job.token, job.lease_expires_at, job.heartbeat_deadline_at, job.timeout_at, job.started_at, job.finished_at,
    job.committed_at, job.cancel_requested, job.progress, job.erased_at, job.tags, job.progress_message, job.reason,
    job.committed_result, job.result, job.partial_result, job.error, job.last_error, job.payload
from tenure_jobs job
where job.id > :after
    and (:statuses is null or job.status in (select value from json_each(:statuses)))
    and (:queues is null or job.queue in (select value from json_each(:queues)))
    and (:kinds is null or job.kind in (select value from json_each(:kinds)))
    and (:reasons is null or job.reason in (select value from json_each(:reasons)))
    and (:dedupe_key is null or job.dedupe_key = :dedupe_key)
    and (:submitted_by is null or job.submitted_by = :submitted_by)
    and (:created_from is null or job.created_at >= :created_from)
    and (:created_until is null or job.created_at < :created_until)
    and not exists (
        select 1
        from json_each(:tags) wanted
        where not exists (
            select 1
            from json_each(job.tags) tag
            where tag.key = wanted.key and tag.value = wanted.value
        )
    )
order by job.id
limit :limit
