-- Waits for whoever claims from this queue by its rules, and keeps others from it to the end of the transaction.
select from tenure.queues queue where queue.name = :name::text for update
