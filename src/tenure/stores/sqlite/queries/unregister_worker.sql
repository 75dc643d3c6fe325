-- Note that a worker has stopped. It stays written down, since jobs name it.
update tenure_workers
set stopped_at = :at
where id = :id
    and stopped_at is null
