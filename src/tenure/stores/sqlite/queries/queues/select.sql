-- The queues that are paused or have limits, and how many of their jobs are leased.
select queue.name, queue.paused_at, queue.concurrency_max, queue.key_concurrency_max, queue.rate_count,
    queue.rate_seconds, queue.key_rate_count, queue.key_rate_seconds, queue.fair, queue.updated_at,
    (
        select count(*)
        from tenure_jobs job indexed by tenure_jobs_leased
        where (job.owner is not null or job.status = 'stalled')
            and job.owner is not null
            and job.queue = queue.name
    )
from tenure_queues queue
where :name is null or queue.name = :name
order by queue.name
