-- Who needs recovery, in the order of ids: held jobs whose lease, heartbeats or time ran out, stalled jobs that were
-- lost or are committed, queued jobs whose time is up. Reads the held set and the queued timeouts, nothing else: the ids
-- are put together first, so that the planner does not scan the primary key of the whole table.
with clock as materialized (select tenure.clock() as now),
needy as materialized (
    select job.id
    from tenure.jobs job, clock
    where job.status in ('claimed', 'running', 'stalled')
      and (:after::uuid is null or job.id > :after::uuid)
      and case job.status
            when 'stalled' then job.lost or job.committed_at is not null
            else job.lease_expires_at <= clock.now or job.heartbeat_deadline_at <= clock.now
                or job.timeout_at <= clock.now
          end
    union all
    select job.id
    from tenure.jobs job, clock
    where job.status = 'queued' and job.timeout_at is not null
      and job.timeout_at <= clock.now
      and (:after::uuid is null or job.id > :after::uuid)
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
