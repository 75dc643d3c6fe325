-- Makes messages pending on their own.
insert into tenure_pending (endpoint, aggregate, only_sequence, position, last_sequence, due_at)
select :endpoint, '', message.sequence, message.sequence - 1, message.sequence, :now
from tenure_outbox message
where message.sequence in (select value from json_each(:sequences))
on conflict do nothing
