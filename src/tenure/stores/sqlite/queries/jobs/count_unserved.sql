-- Kinds that have due jobs and no recently seen worker, the most jobs first.
-- Reads at most :scanned of the jobs without a lease, in the order of their index.
with ready as (
    select job.kind, job.due_at
    from tenure_jobs job indexed by tenure_jobs_ready
    where job.owner is null and job.finished_at is null
    order by job.queue, job.priority desc, job.due_at, job.id
    limit :scanned
)
select ready.kind, count(*), (select count(*) from ready) >= :scanned
from ready
where ready.due_at <= :now
    and not exists (
        select 1
        from tenure_workers worker, json_each(worker.kinds) known
        where worker.stopped_at is null
            and worker.seen_at > :seen_after
            and known.value = ready.kind
    )
group by ready.kind
order by count(*) desc, ready.kind
limit :kinds
