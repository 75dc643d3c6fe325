-- Kinds that have due jobs and no worker that was seen of late, the most jobs first. Looks at so many of the jobs that
-- may be claimed, and no more, in the order of their index.
with clock as materialized (select tenure.clock() as now),
ready as materialized (
    select job.kind, job.due_at
    from tenure.jobs job
    where job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null
    order by job.queue, job.priority, job.due_at, job.id
    limit :looked_at
)
select ready.kind, count(*) as jobs, (select count(*) from ready) >= :looked_at as more
from ready
cross join clock
where ready.due_at <= clock.now
  and not exists (
    select
    from tenure.workers worker
    where worker.stopped_at is null
      and worker.seen_at > clock.now - :seen_seconds::integer * interval '1 second'
      and worker.kinds::jsonb ? ready.kind
  )
group by ready.kind
order by count(*) desc, ready.kind
limit :kinds
