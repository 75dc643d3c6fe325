-- How many jobs of one queue are claimed or running, by partition key: these count against concurrency limits.
select job.partition_key as key, count(*) as leased
from tenure.jobs job
where job.queue = :queue::text
  and job.status in ('claimed', 'running', 'stalled')
  and job.status <> 'stalled'
group by job.partition_key
