-- The first due jobs of one priority across queues, in the order of claiming; those set aside are left out. It begins with
-- the head of each queue, and each job that is chosen is followed by its successor: of a queue whose head comes too late
-- nothing more is read. The plus sign makes the id a mere value: SQLite finds the place behind a pair by its index only if
-- it need not convert the second one.
with recursive due(due_at, id, queue) as (
    select head.due_at, head.id, head.queue
    from json_each(:queues) queue
    join tenure_jobs head on head.rowid = (
        select job.rowid
        from tenure_jobs job indexed by tenure_jobs_ready
        where job.owner is null
            and job.finished_at is null
            and job.queue = queue.value
            and job.priority = :priority
            and job.due_at <= :now
            and job.kind in (select value from json_each(:kinds))
            and job.id not in (select value from json_each(:set_aside))
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
            and job.finished_at is null
            and job.queue = due.queue
            and job.priority = :priority
            and (job.due_at, job.id) > (due.due_at, +due.id)
            and job.due_at <= :now
            and job.kind in (select value from json_each(:kinds))
            and job.id not in (select value from json_each(:set_aside))
        order by job.due_at, job.id
        limit 1
    )
    order by 1, 2
    limit :limit
)
select due.id
from due
