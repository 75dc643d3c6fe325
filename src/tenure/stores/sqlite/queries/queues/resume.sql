-- Resumes a queue. No row: it is not paused.
update tenure_queues
set paused_at = null, updated_at = :now
where name = :name and paused_at is not null
