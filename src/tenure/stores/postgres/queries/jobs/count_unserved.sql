-- Queues and kinds that have due jobs and no recently seen worker, the most jobs first, and whether such a worker serves
-- the queue for other kinds. Reads at most :looked_at of the jobs that may be claimed, in the order of their index.
with clock as materialized (select tenure.clock() as now),
ready as materialized (
    select job.queue, job.kind, job.due_at
    from tenure.jobs job
    where job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null and job.pinned_version is null
    order by job.queue, job.priority, job.due_at, job.id
    limit :looked_at
),
live as materialized (
    select worker.queues::jsonb as queues, worker.kinds::jsonb as kinds
    from tenure.workers worker
    cross join clock
    where worker.stopped_at is null
      and worker.seen_at > clock.now - :seen_seconds::integer * interval '1 second'
)
select ready.queue, ready.kind, count(*) as jobs, (select count(*) from ready) >= :looked_at as more,
    exists (select from live where live.queues ? ready.queue) as queue_served
from ready
cross join clock
where ready.due_at <= clock.now
  and not exists (select from live where live.queues ? ready.queue and live.kinds ? ready.kind)
group by ready.queue, ready.kind
order by count(*) desc, ready.queue, ready.kind
limit :kinds
