-- Queues and kinds that have due jobs and no recently seen worker, the most jobs first, and whether such a worker serves
-- the queue for other kinds. Reads at most :scanned of the jobs without a lease, in the order of their index.
with ready as (
    select job.queue, job.kind, job.due_at
    from tenure_jobs job indexed by tenure_jobs_ready
    where job.owner is null and job.finished_at is null and job.pinned_version is null
    order by job.queue, job.priority desc, job.due_at, job.id
    limit :scanned
),
live as (
    select worker.queues, worker.kinds
    from tenure_workers worker
    where worker.stopped_at is null and worker.seen_at > :seen_after
)
select
    ready.queue,
    ready.kind,
    count(*),
    (select count(*) from ready) >= :scanned,
    exists (select 1 from live, json_each(live.queues) served where served.value = ready.queue)
from ready
where ready.due_at <= :now
    and not exists (
        select 1
        from live, json_each(live.queues) served, json_each(live.kinds) known
        where served.value = ready.queue and known.value = ready.kind
    )
group by ready.queue, ready.kind
order by count(*) desc, ready.queue, ready.kind
limit :kinds
