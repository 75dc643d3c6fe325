-- What is pending of one message, for each endpoint that has yet to receive it. No row: nothing is.
select pending.endpoint, pending.aggregate, pending.only_sequence, pending.position, pending.last_sequence, pending.due_at,
    pending.attempts, pending.head_at
from tenure_outbox message
join tenure_pending pending
    on (pending.only_sequence = 0 and pending.aggregate = message.aggregate and pending.position < message.sequence)
    or pending.only_sequence = message.sequence
where message.sequence = :sequence
order by pending.endpoint, pending.only_sequence
