from tenure_workers worker
where coalesce(worker.stopped_at, worker.seen_at) <= :before
    and not exists (
        select 1
        from (select created_at from tenure_jobs order by id limit 1) first
        where first.created_at <= coalesce(worker.stopped_at, worker.seen_at) + :slack
    )
