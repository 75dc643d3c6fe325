-- Makes all messages since a time pending again for an endpoint that subscribes to them. A lease is revoked, so that its
-- processor cannot move the position forward again.
insert into tenure_pending (endpoint, aggregate, only_sequence, position, last_sequence, due_at)
select :endpoint, ifnull(message.aggregate, ''), case when message.aggregate is null then message.sequence else 0 end,
    min(message.sequence) - 1, max(message.sequence), :now
from tenure_outbox message
where message.at >= :since
    and exists (
        select 1 from tenure_subscriptions subscription where subscription.endpoint = :endpoint and
        -- part: topic_matches
    )
group by ifnull(message.aggregate, ''), case when message.aggregate is null then message.sequence else 0 end
on conflict (endpoint, aggregate, only_sequence) do update
set position = min(position, excluded.position), last_sequence = max(last_sequence, excluded.last_sequence),
    due_at = excluded.due_at, attempts = 0, head_at = null, owner = null, token = null
