-- Notes for the next claim what a claim by rules has spent of its queue's rate, and whose turn was last.
update tenure_queues
set turn = coalesce(:turn, turn), spent = coalesce(:spent, spent)
where name = :queue
