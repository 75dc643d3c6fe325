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
