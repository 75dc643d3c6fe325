-- How many jobs of each kind in each queue have each status, and how long those that are due have been. Reads all jobs.
select job.queue, job.kind, job.status, count(*) as jobs, count(*) filter (where due.holds) as due,
    min(job.due_at) filter (where due.holds) as oldest_due_at
from tenure.jobs job
cross join (select tenure.clock() as now) clock
cross join lateral (
    select coalesce(job.due_at <= clock.now and job.committed_at is null
        and job.status in ('queued', 'retry', 'waiting', 'stalled'), false) as holds
) due
group by job.queue, job.kind, job.status
order by job.queue, job.kind, job.status
