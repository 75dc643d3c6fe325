-- The first due jobs of one partition of a queue in claim order, with the columns that limits decide upon.
select job.id, job.priority, job.due_at, job.losses
from tenure_jobs job indexed by tenure_jobs_partitioned
where job.owner is null
    and job.finished_at is null and job.pinned_version is null
    and job.partition_key is not null
    and job.queue = :queue
    and job.partition_key = :key
    and job.due_at <= :now
    and job.kind in (select value from json_each(:kinds))
    and job.id not in (select value from json_each(:quarantined))
order by job.priority desc, job.due_at, job.id
limit :each
