-- Marks a worker as stopped. The row stays, since jobs name it.
update tenure_workers
set stopped_at = :at
where id = :id
    and stopped_at is null
