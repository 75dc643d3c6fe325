-- Jobs that need recovery, in the order of ids: leased jobs whose lease, heartbeat deadline or timeout has passed,
-- queued jobs whose timeout has passed, and stalled jobs that were lost or are committed.
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
            when 'stalled' then leased.lost or leased.committed_at is not null
            else leased.lease_expires_at <= :now
                or leased.heartbeat_deadline_at <= :now
                or leased.timeout_at <= :now
        end
    union all
    select overdue.id
    from tenure_jobs overdue indexed by tenure_jobs_overdue
    where overdue.status = 'queued'
        and overdue.timeout_at is not null
        and overdue.timeout_at <= :now
        and overdue.id > :after
)
order by job.id
