from tenure.workers worker
where coalesce(worker.stopped_at, worker.seen_at) <= :before::timestamptz
  and not exists (
    select
    from (select job.created_at from tenure.jobs job order by job.id limit 1) first
    where first.created_at <= coalesce(worker.stopped_at, worker.seen_at) + :slack::interval
  )
