-- The next status and kind of which there are finished jobs, and when the first of them ended. No row: there is none.
select status, kind, finished_at
from tenure_jobs indexed by tenure_jobs_finished
where finished_at is not null
    and (status, kind) > (:status, :kind)
order by status, kind, finished_at
limit 1
