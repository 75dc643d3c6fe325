from tenure_jobs job indexed by tenure_jobs_ready
where job.owner is null
    and job.finished_at is null and job.pinned_version is null
    and job.queue = :queue
    and job.priority = :priority
    and job.due_at <= :now
    and job.kind in (select value from json_each(:kinds))
    and job.id not in (select value from json_each(:quarantined))
order by job.due_at, job.id
