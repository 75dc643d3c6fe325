-- How many jobs without a lease are pinned to each version of the code, by queue and kind.
select job.pinned_version as version, job.queue, job.kind, count(*) as jobs
from tenure.jobs job
where job.pinned_version is not null and job.status in ('queued', 'retry', 'waiting', 'stalled')
group by job.pinned_version, job.queue, job.kind
order by job.pinned_version, job.queue, job.kind
