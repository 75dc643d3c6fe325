-- A page of the jobs of one correlation id, newest first, before the given id: those that have it, and the root that it
-- names, which has none. A null filter matches all.
select
    -- each job column: job.{}
from tenure_jobs job
where job.id in (
        select id
        from tenure_jobs indexed by tenure_jobs_correlation
        where correlation_id is not null and correlation_id = :correlation_id
        union all
        select id from tenure_jobs where id = :correlation_id and correlation_id is null
    )
    and job.id < :after
    and (:statuses is null or job.status in (select value from json_each(:statuses)))
    -- part: other_filters
order by job.id desc
limit :limit
