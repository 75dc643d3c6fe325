-- The partitions after the given one that have jobs without a lease, due or not: one index step for each.
with recursive keys(key, number) as (
    select (
        select job.partition_key
        from tenure_jobs job indexed by tenure_jobs_partitioned
        where job.owner is null and job.finished_at is null and job.pinned_version is null and job.partition_key is not null
            and job.queue = :queue and job.partition_key > :after
        order by job.partition_key
        limit 1
    ), 1
    union all
    select (
        select job.partition_key
        from tenure_jobs job indexed by tenure_jobs_partitioned
        where job.owner is null and job.finished_at is null and job.pinned_version is null and job.partition_key is not null
            and job.queue = :queue and job.partition_key > keys.key
        order by job.partition_key
        limit 1
    ), keys.number + 1
    from keys
    where keys.key is not null and keys.number < :limit
)
select keys.key
from keys
where keys.key is not null
order by keys.number
