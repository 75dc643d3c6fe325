-- Records the rate usage of a queue, and the partition that was served last.
update tenure_queues
set turn = coalesce(:turn, turn), spent = coalesce(:spent, spent)
where name = :queue
