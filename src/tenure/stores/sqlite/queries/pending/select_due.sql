-- Due streams of an endpoint that is neither disabled nor throttled, those that are due longest first.
select pending.aggregate, pending.only_sequence, pending.position, pending.last_sequence, pending.attempts, pending.head_at
from tenure_endpoints endpoint
join tenure_pending pending on pending.endpoint = endpoint.name
where endpoint.name = :endpoint
    and endpoint.disabled_at is null
    and (endpoint.throttled_until_at is null or endpoint.throttled_until_at <= :now)
    and pending.due_at <= :now
order by pending.due_at
limit :limit
