-- How much each endpoint has yet to receive, and its dead letters. A stream's oldest message is the one after its position.
select endpoint.name as endpoint,
    (select count(*) from tenure_pending pending where pending.endpoint = endpoint.name) as streams,
    (
        select count(*)
        from tenure_pending pending
        join tenure_outbox message
            on (pending.only_sequence = 0 and message.aggregate = pending.aggregate and message.sequence > pending.position
                and message.sequence <= pending.last_sequence)
            or message.sequence = pending.only_sequence
        where pending.endpoint = endpoint.name
    ) as messages,
    (
        select count(*) from tenure_deliveries delivery
        where delivery.endpoint = endpoint.name and delivery.outcome = 'dead' and delivery.handled_at is null
    ) as dead,
    (
        select min(message.at)
        from tenure_pending pending
        join tenure_outbox message
            on (pending.only_sequence = 0 and message.aggregate = pending.aggregate and message.sequence > pending.position
                and message.sequence <= pending.last_sequence)
            or message.sequence = pending.only_sequence
        where pending.endpoint = endpoint.name
    ) as oldest_at
from tenure_endpoints endpoint
order by endpoint.name
