-- Deletes a queue's pause and limits. No row: it has none.
delete from tenure_queues
where name = :name
