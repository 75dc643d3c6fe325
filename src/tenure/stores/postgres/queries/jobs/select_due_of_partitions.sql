-- The first due jobs of each of these keys, in the order of claiming. Nothing is locked.
select due.id, :queue::text as queue, wanted.key, due.priority, due.due_at, due.losses
from (select tenure.clock() as now) clock,
    unnest(:keys::text[]) wanted(key),
    lateral (
        select job.id, job.priority, job.due_at, job.losses
        from tenure.jobs job
        where job.queue = :queue::text
          and job.partition_key = wanted.key
          and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null and job.pinned_version is null and job.partition_key is not null
          and job.due_at <= clock.now
          and job.kind = any (:kinds::text[])
          and job.committed_at is null
          and job.id <> all (:excluded::uuid[])
        order by job.priority desc, job.due_at, job.id
        limit :each
    ) due
order by wanted.key, due.priority desc, due.due_at, due.id
