-- Notes that a worker has stopped. It stays written down, since jobs name it.
update tenure.workers
set stopped_at = tenure.clock()
where id = :id::text and stopped_at is null
