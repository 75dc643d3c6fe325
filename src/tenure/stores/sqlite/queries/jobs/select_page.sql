-- A page of jobs, oldest first, after the given id. A null filter matches all.
select
    -- each job column: job.{}
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
