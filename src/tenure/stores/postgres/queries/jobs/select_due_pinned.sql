-- The first due jobs that are pinned to :code_version, in claim order, with the columns that limits decide upon. Nothing is
-- locked.
select job.id, job.queue, job.partition_key as key, job.priority, job.due_at, job.losses
from tenure.jobs job, (select tenure.clock() as now) clock
where job.pinned_version = :code_version::text
  and job.pinned_version is not null and job.status in ('queued', 'retry', 'waiting', 'stalled')
  and job.queue = any (:queues::text[])
  and job.due_at <= clock.now
  and job.kind = any (:kinds::text[])
  and job.committed_at is null
  and job.id <> all (:excluded::uuid[])
order by job.priority desc, job.due_at, job.id
limit :limit
