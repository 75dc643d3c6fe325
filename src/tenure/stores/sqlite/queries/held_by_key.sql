-- How many jobs of one queue are claimed or running, by key: the permits that are in use.
select job.partition_key, count(*)
from tenure_jobs job indexed by tenure_jobs_held
where (job.owner is not null or job.status = 'stalled')
    and job.owner is not null
    and job.queue = :queue
group by job.partition_key
