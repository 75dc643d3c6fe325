-- Deletes workers that were last seen up to a time.
-- Guard: no job is kept that was created before that, or a slack after it: its attempts may name the worker.
delete from tenure_workers
where id in (
        select worker.id
        -- part: stopped
        limit :limit
    )
