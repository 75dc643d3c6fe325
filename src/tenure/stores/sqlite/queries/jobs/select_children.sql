-- A page of the jobs that have this parent, oldest first, after the given id.
select
    -- each job column: job.{}
from tenure_jobs job
where job.parent_id = :parent_id
    and job.id > :after
    and (not :live_only or job.finished_at is null)
order by job.id
limit :limit
