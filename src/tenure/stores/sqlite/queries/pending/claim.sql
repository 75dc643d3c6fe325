-- Leases due streams of an endpoint that is neither disabled nor throttled, those that are due longest first.
update tenure_pending
set owner = :owner, token = :token, due_at = :until_at
where (endpoint, aggregate, only_sequence) in (
    select pending.endpoint, pending.aggregate, pending.only_sequence
    from tenure_endpoints endpoint
    join tenure_pending pending on pending.endpoint = endpoint.name
    where endpoint.name = :endpoint
        and endpoint.disabled_at is null
        and (endpoint.throttled_until_at is null or endpoint.throttled_until_at <= :now)
        and pending.due_at <= :now
    order by pending.due_at
    limit :limit
)
returning aggregate, only_sequence, position, last_sequence, attempts, head_at
