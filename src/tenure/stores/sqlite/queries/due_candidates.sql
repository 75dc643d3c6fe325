-- The first due jobs of one queue and priority, in the order of claiming, as far as a choice by rules needs them.
select job.id, job.partition_key, job.due_at, job.losses
from tenure_jobs job indexed by tenure_jobs_ready
where job.owner is null
    and job.finished_at is null
    and job.queue = :queue
    and job.priority = :priority
    and job.due_at <= :now
    and job.kind in (select value from json_each(:kinds))
    and job.id not in (select value from json_each(:set_aside))
order by job.due_at, job.id
limit :limit
