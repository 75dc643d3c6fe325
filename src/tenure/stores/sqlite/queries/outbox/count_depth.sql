-- How much each endpoint has yet to receive, and its dead letters. A stream's oldest message is the one after its position.
select endpoint.name as endpoint,
    (select count(*) from tenure_pending pending where pending.endpoint = endpoint.name) as streams,
    (
        select count(*)
        -- part: waiting
    ) as messages,
    (
        select count(*) from tenure_deliveries delivery
        where delivery.endpoint = endpoint.name and delivery.outcome = 'dead' and delivery.handled_at is null
    ) as dead,
    (
        select min(message.at)
        -- part: waiting
    ) as oldest_at
from tenure_endpoints endpoint
order by endpoint.name
