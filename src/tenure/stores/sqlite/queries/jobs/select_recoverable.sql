-- Jobs that need recovery, in the order of ids: leased jobs whose lease, heartbeat deadline or timeout has passed,
-- jobs without a lease whose timeout has passed, stalled jobs that were lost or do not run again, and jobs that wait
-- for children of which enough have ended.
-- The caller stops reading when it has enough.
select
    -- each job column: job.{}
from tenure_jobs job
where job.id in (
    select leased.id
    from tenure_jobs leased indexed by tenure_jobs_leased
    where (leased.owner is not null or leased.status = 'stalled')
        and leased.id > :after
        and case leased.status
            when 'stalled' then leased.lost or leased.due_at is null
            else leased.lease_expires_at <= :now
                or leased.heartbeat_deadline_at <= :now
                or leased.timeout_at <= :now
        end
    union
    select overdue.id
    from tenure_jobs overdue indexed by tenure_jobs_unleased_timeout
    where overdue.owner is null
        and overdue.finished_at is null
        and overdue.timeout_at is not null
        and overdue.timeout_at <= :now
        and overdue.id > :after
    union
    select job.id
    from tenure_jobs job indexed by tenure_jobs_awaiting
    where job.id > :after
    -- part: children_ended
)
order by job.id
