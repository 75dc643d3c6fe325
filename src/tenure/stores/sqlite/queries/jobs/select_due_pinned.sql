-- The first due jobs that are pinned to one version of the code, in claim order, with the columns that limits decide upon.
select job.id, job.queue, job.partition_key, job.priority, job.due_at, job.losses
from tenure_jobs job indexed by tenure_jobs_pinned
where job.owner is null and job.finished_at is null and job.pinned_version is not null
    and job.pinned_version = :code_version
    and job.queue in (select value from json_each(:queues))
    and job.due_at <= :now
    and job.kind in (select value from json_each(:kinds))
    and job.id not in (select value from json_each(:quarantined))
order by job.priority desc, job.due_at, job.id
limit :limit
