-- How much each endpoint has yet to receive, and its dead letters. A stream's oldest message is the one after its position.
select endpoint.name as endpoint,
    (select count(*) from tenure.pending pending where pending.endpoint = endpoint.name) as streams,
    waiting.messages,
    (
        select count(*) from tenure.deliveries delivery
        where delivery.endpoint = endpoint.name and delivery.outcome = 'dead' and delivery.handled_at is null
    ) as dead,
    waiting.oldest_at
from tenure.endpoints endpoint
cross join lateral (
    select count(message.id) as messages, min(message.at) as oldest_at
    from tenure.pending pending
    join tenure.outbox message
        on (pending.only_sequence = 0 and message.aggregate = pending.aggregate and message.sequence > pending.position
            and message.sequence <= pending.last_sequence)
        or message.sequence = pending.only_sequence
    where pending.endpoint = endpoint.name
) waiting
order by endpoint.name
