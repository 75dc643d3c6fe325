-- A page of jobs, newest first, before the given id. A null filter matches all.
select
    -- each job column: job.{}
from tenure_jobs job
where job.id < :after
    and (:statuses is null or job.status in (select value from json_each(:statuses)))
    -- part: other_filters
order by job.id desc
limit :limit
