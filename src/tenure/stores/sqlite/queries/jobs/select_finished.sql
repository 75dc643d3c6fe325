-- Jobs of a status and kind that ended up to a time, the oldest first.
select id
from tenure_jobs indexed by tenure_jobs_finished
where status = :status
    and kind = :kind
    and finished_at is not null
    and finished_at <= :before
order by finished_at
limit :limit
