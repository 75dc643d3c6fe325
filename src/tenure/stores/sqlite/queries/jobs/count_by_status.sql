-- The number of jobs by queue, kind and status, how many are due, and since when. Reads all jobs.
select
    queue, kind, status, count(*),
    count(case when owner is null and finished_at is null and committed_at is null and due_at <= :now then 1 end),
    min(case when owner is null and finished_at is null and committed_at is null and due_at <= :now then due_at end)
from tenure_jobs
group by queue, kind, status
order by queue, kind, status
