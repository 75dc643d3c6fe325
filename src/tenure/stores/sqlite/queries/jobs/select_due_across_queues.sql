-- The first due jobs of one priority across queues in claim order, without quarantined ones.
-- The recursion begins with the first job of each queue; each job that is chosen is followed by its successor, so that
-- a queue whose first job is too late costs one step. The plus sign in +due.id keeps the index usable: it removes the
-- column's affinity, so that SQLite compares the pair without a conversion.
with recursive due(due_at, id, queue) as (
    select head.due_at, head.id, head.queue
    from json_each(:queues) queue
    join tenure_jobs head on head.rowid = (
        select job.rowid
        from tenure_jobs job indexed by tenure_jobs_ready
        where job.owner is null
            and job.finished_at is null and job.pinned_version is null
            and job.queue = queue.value
            and job.priority = :priority
            and job.due_at <= :now
            and job.kind in (select value from json_each(:kinds))
            and job.id not in (select value from json_each(:quarantined))
        order by job.due_at, job.id
        limit 1
    )
    union all
    select successor.due_at, successor.id, successor.queue
    from due
    join tenure_jobs successor on successor.rowid = (
        select job.rowid
        from tenure_jobs job indexed by tenure_jobs_ready
        where job.owner is null
            and job.finished_at is null and job.pinned_version is null
            and job.queue = due.queue
            and job.priority = :priority
            and (job.due_at, job.id) > (due.due_at, +due.id)
            and job.due_at <= :now
            and job.kind in (select value from json_each(:kinds))
            and job.id not in (select value from json_each(:quarantined))
        order by job.due_at, job.id
        limit 1
    )
    order by 1, 2
    limit :limit
)
select due.id
from due
