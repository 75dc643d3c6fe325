-- Makes a message pending for the endpoints that subscribe to it.
insert into tenure_pending (endpoint, aggregate, only_sequence, position, last_sequence, due_at)
select distinct subscription.endpoint, ifnull(message.aggregate, ''),
    case when message.aggregate is null then message.sequence else 0 end,
    message.sequence - 1, message.sequence, :at
from tenure_outbox message
join tenure_subscriptions subscription on
    -- part: topic_matches
where message.sequence = :sequence
on conflict (endpoint, aggregate, only_sequence) do update set last_sequence = excluded.last_sequence
