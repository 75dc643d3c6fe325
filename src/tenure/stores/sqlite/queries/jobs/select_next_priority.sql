-- The highest priority below the given one at which each queue has jobs without a lease. Null: there is none.
select
    queue.value,
    (
        select ready.priority
        from tenure_jobs ready indexed by tenure_jobs_ready
        where ready.owner is null
            and ready.finished_at is null and ready.pinned_version is null
            and ready.queue = queue.value
            and ready.priority < :below
        order by ready.priority desc
        limit 1
    )
from json_each(:queues) queue
