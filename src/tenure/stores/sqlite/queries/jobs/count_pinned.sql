-- How many jobs without a lease are pinned to each version of the code, by queue and kind.
select job.pinned_version, job.queue, job.kind, count(*)
from tenure_jobs job indexed by tenure_jobs_pinned
where job.owner is null and job.finished_at is null and job.pinned_version is not null
group by job.pinned_version, job.queue, job.kind
order by job.pinned_version, job.queue, job.kind
