-- The first due jobs of one queue in claim order, to choose from within limits. Nothing is locked.
with recursive clock as materialized (select tenure.clock() as now),
levels(priority) as (
    (
        select job.priority
        from tenure.jobs job
        where job.queue = :queue::text
          and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null and job.pinned_version is null
        order by job.priority desc
        limit 1
    )
    union all
    select lower.priority
    from levels,
        lateral (
            select job.priority
            from tenure.jobs job
            where job.queue = :queue::text
              and job.priority < levels.priority
              and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null and job.pinned_version is null
            order by job.priority desc
            limit 1
        ) lower
)
select due.id, :queue::text as queue, due.key, levels.priority, due.due_at, due.losses
from levels, clock,
    lateral (
        select job.id, job.partition_key as key, job.due_at, job.losses
        from tenure.jobs job
        where job.queue = :queue::text
          and job.priority = levels.priority
          -- part: due
        order by job.due_at, job.id
        limit :limit
    ) due
order by levels.priority desc, due.due_at, due.id
limit :limit
