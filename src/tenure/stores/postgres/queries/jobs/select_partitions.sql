-- The keys after :after under which jobs of one queue wait, whether they are due or not: a step along the index for each.
with recursive keys(key, number) as (
    (
        select job.partition_key, 1
        from tenure.jobs job
        where job.queue = :queue::text
          and job.partition_key > :after::text
          and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null and job.pinned_version is null and job.partition_key is not null
        order by job.partition_key
        limit 1
    )
    union all
    select next.key, keys.number + 1
    from keys,
        lateral (
            select job.partition_key as key
            from tenure.jobs job
            where job.queue = :queue::text
              and job.partition_key > keys.key
              and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null and job.pinned_version is null and job.partition_key is not null
            order by job.partition_key
            limit 1
        ) next
    where keys.number < :limit::integer
)
select keys.key
from keys
order by keys.number
