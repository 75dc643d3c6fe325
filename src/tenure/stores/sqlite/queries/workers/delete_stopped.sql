-- Deletes workers that were last seen up to a time.
-- Guard: no job is kept that was created before that, or a slack after it: its attempts may name the worker.
delete from tenure_workers
where id in (
        select worker.id
        from tenure_workers worker
        where coalesce(worker.stopped_at, worker.seen_at) <= :before
            and not exists (
                select 1
                from (select created_at from tenure_jobs order by id limit 1) first
                where first.created_at <= coalesce(worker.stopped_at, worker.seen_at) + :slack
            )
        limit :limit
    )
