-- Records the rate usage of a queue, and the partition that was served last.
update tenure_queues
set last_key = coalesce(:last_key, last_key), usage = coalesce(:usage, usage)
where name = :queue
