-- Waits for a claim within the limits of this queue to end, and blocks the next ones to the end of the transaction.
select from tenure.queues queue where queue.name = :name::text for update
