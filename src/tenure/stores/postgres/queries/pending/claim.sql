-- Leases due streams of endpoints that are neither disabled nor throttled, up to the limit of each endpoint, those that are
-- due longest first. Rows that others have locked are skipped. Returns each stream with its next messages in order: one row
-- for each message, or one without a message where none is visible yet. A message's time that cannot be read is null. No row: nothing is due.
with clock as materialized (select tenure.clock() as now),
due as materialized (
    select found.*
    from clock
    cross join unnest(:endpoints::text[], :limits::integer[]) as wanted(endpoint, most)
    join tenure.endpoints endpoint on endpoint.name = wanted.endpoint
        and endpoint.disabled_at is null
        and (endpoint.throttled_until_at is null or endpoint.throttled_until_at <= clock.now)
    cross join lateral (
        select pending.endpoint, pending.aggregate, pending.only_sequence
        from tenure.pending pending
        where pending.endpoint = wanted.endpoint
          and pending.due_at <= clock.now
        order by pending.due_at
        limit wanted.most
        for update skip locked
    ) found
),
leased as (
    update tenure.pending pending
    set owner = :owner::text,
        token = :token::uuid,
        due_at = clock.now + :lease_ms::bigint * interval '1 millisecond'
    from due, clock
    where pending.endpoint = due.endpoint
      and pending.aggregate = due.aggregate
      and pending.only_sequence = due.only_sequence
    returning pending.*, extract(epoch from clock.now - pending.head_at)::double precision as blocked_seconds
)
select leased.endpoint, leased.aggregate as stream, leased.only_sequence, leased.position, leased.last_sequence,
    leased.attempts, leased.blocked_seconds, previous.sequence as previous,
    message.sequence, message.id, message.aggregate, message.topic, message.body, message.headers, message.job_id,
    message.correlation_id, message.trace, case when tenure.is_readable(message.at) then message.at end as at, message.endpoint_count
from leased
left join lateral (
    (
        select message.*
        from tenure.outbox message
        where leased.only_sequence = 0
          and message.aggregate = leased.aggregate
          and message.sequence > leased.position
          and message.sequence <= leased.last_sequence
        order by message.sequence
        limit :messages_max
    )
    union all
    select message.*
    from tenure.outbox message
    where leased.only_sequence > 0
      and message.sequence = leased.only_sequence
    order by sequence
    limit :messages_max
) message on true
left join lateral (
    select delivery.sequence
    from tenure.deliveries delivery
    where delivery.endpoint = leased.endpoint
      and delivery.aggregate = case leased.only_sequence when 0 then leased.aggregate
          else (select message.aggregate from tenure.outbox message where message.sequence = leased.only_sequence) end
      and delivery.sequence <= leased.position
    order by delivery.sequence desc
    limit 1
) previous on true
order by leased.endpoint, leased.aggregate, leased.only_sequence, message.sequence
