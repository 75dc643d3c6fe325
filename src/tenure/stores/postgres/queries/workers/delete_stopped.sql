-- Deletes workers that were last seen up to a time. Returns how many.
-- Guard: no job is kept that was created before that, or a slack after it: its attempts may name the worker.
with doomed as materialized (
    select worker.id
    from tenure.workers worker
    where coalesce(worker.stopped_at, worker.seen_at) <= :before::timestamptz
      and not exists (
        select
        from (select job.created_at from tenure.jobs job order by job.id limit 1) first
        where first.created_at <= coalesce(worker.stopped_at, worker.seen_at) + :slack::interval
      )
    limit :limit
    for update skip locked
),
deleted as (delete from tenure.workers worker using doomed where worker.id = doomed.id returning 1)
select count(*) from deleted
