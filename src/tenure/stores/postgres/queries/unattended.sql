-- Who needs recovery, in the order of ids: held jobs whose lease, heartbeats or time ran out, stalled jobs that were
-- lost or are committed, queued jobs whose time is up. Reads the held set and the queued timeouts, nothing else.
with moment as materialized (select tenure.clock() as now)
(
    select job.*
    from tenure.jobs job, moment
    where job.status in ('claimed', 'running', 'stalled')
      and (:after::uuid is null or job.id > :after::uuid)
      and case job.status
            when 'stalled' then job.lost or job.committed_at is not null
            else job.lease_expires_at <= moment.now or job.heartbeat_deadline_at <= moment.now
                or job.timeout_at <= moment.now
          end
    order by job.id
    limit :limit
)
union all
(
    select job.*
    from tenure.jobs job, moment
    where job.status = 'queued' and job.timeout_at is not null
      and job.timeout_at <= moment.now
      and (:after::uuid is null or job.id > :after::uuid)
    order by job.id
    limit :limit
)
order by id
limit :limit
