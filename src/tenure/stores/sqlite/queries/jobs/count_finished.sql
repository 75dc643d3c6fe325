-- How many jobs of a status and kind ended up to a time.
select count(*)
from tenure_jobs indexed by tenure_jobs_finished
where status = :status
    and kind = :kind
    and finished_at is not null
    and finished_at <= :before
