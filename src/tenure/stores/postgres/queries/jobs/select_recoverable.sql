-- Jobs that need recovery, in the order of ids: leased jobs whose lease, heartbeat deadline or timeout has passed, jobs
-- without a lease whose timeout has passed, stalled jobs that were lost or do not run again, and jobs that wait for
-- children of which enough have ended. Reads the leased set, the timeouts of jobs without a lease, jobs that wait for
-- children and their live children, nothing else: the ids are put together first, so that the planner does not scan the
-- primary key of the whole table.
with clock as materialized (select tenure.clock() as now),
needy as materialized (
    select job.id
    from tenure.jobs job, clock
    where job.status in ('claimed', 'running', 'stalled')
      and (:after::uuid is null or job.id > :after::uuid)
      and case job.status
            when 'stalled' then job.lost or job.due_at is null
            else job.lease_expires_at <= clock.now or job.heartbeat_deadline_at <= clock.now
                or job.timeout_at <= clock.now
          end
    union
    select job.id
    from tenure.jobs job, clock
    where job.status in ('queued', 'retry', 'waiting', 'stalled') and job.timeout_at is not null
      and job.timeout_at <= clock.now
      and (:after::uuid is null or job.id > :after::uuid)
    union
    select job.id
    from tenure.jobs job, clock
    where (:after::uuid is null or job.id > :after::uuid)
      -- part: children_ended
),
first as materialized (
    select needy.id
    from needy
    order by needy.id
    limit :limit
)
select job.*
from tenure.jobs job
where job.id = any (array(select first.id from first))
order by job.id
