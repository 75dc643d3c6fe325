-- Deletes workers that were last seen up to a time. Returns how many.
-- Guard: no job is kept that was created before that, or a slack after it: its attempts may name the worker.
with doomed as materialized (
    select worker.id
    -- part: stopped
    limit :limit
    for update skip locked
),
deleted as (delete from tenure.workers worker using doomed where worker.id = doomed.id returning 1)
select count(*) from deleted
