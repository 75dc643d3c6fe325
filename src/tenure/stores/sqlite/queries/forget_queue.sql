-- Removes what is known of a queue.
delete from tenure_queues
where name = :name
