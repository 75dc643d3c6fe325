-- The number of leased jobs of one queue by partition: what its concurrency limits count.
select job.partition_key, count(*)
from tenure_jobs job indexed by tenure_jobs_leased
where (job.owner is not null or job.status = 'stalled')
    and job.owner is not null
    and job.queue = :queue
group by job.partition_key
