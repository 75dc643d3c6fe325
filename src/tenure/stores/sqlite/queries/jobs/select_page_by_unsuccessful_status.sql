-- A page of jobs of statuses in which few jobs end, oldest first, after the given id. The inner query reads only the
-- index. A null filter matches all.
select
    -- each job column: job.{}
from tenure_jobs job
where job.id in (
        select ended.id
        from json_each(:statuses) wanted
        cross join tenure_jobs ended indexed by tenure_jobs_unsuccessful on ended.status = wanted.value
        where ended.status in ('failed', 'cancelled', 'halted', 'dead_lettered')
            and ended.id > :after
    )
    -- part: other_filters
order by job.id
limit :limit
