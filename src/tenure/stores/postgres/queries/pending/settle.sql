-- Records attempts and positions of leased streams, removes streams that are done, and records dead letters in the
-- operator log.
-- Guard: the token of the lease, and a lease that runs when the row is locked. Rows are locked in the order of their
-- keys.
-- Returns the places of the settlements that were written; one that is missing has lost its lease.
with writer as materialized (select set_config('tenure.writer', 'store', true)),
settled as materialized (
    select pending.endpoint, pending.aggregate, pending.only_sequence, pending.last_sequence, given.place, given.position,
        given.attempts, given.lease_ms, given.due_ms, given.owner, tenure.clock() as now, pending.due_at
    from writer
    cross join unnest(:endpoints::text[], :streams::text[], :only_sequences::bigint[], :tokens::uuid[], :positions::bigint[],
            :attempts::integer[], :lease_ms::bigint[], :due_ms::bigint[], :owners::text[])
        with ordinality as given(endpoint, aggregate, only_sequence, token, position, attempts, lease_ms, due_ms, owner, place)
    join tenure.pending pending on pending.endpoint = given.endpoint
        and pending.aggregate = given.aggregate
        and pending.only_sequence = given.only_sequence
        and pending.token = given.token
    order by pending.endpoint, pending.aggregate, pending.only_sequence
    for update of pending
),
kept as materialized (select settled.* from settled where settled.due_at > settled.now),
removed as (
    delete from tenure.pending pending
    using kept
    where pending.endpoint = kept.endpoint
      and pending.aggregate = kept.aggregate
      and pending.only_sequence = kept.only_sequence
      and kept.position >= kept.last_sequence
),
moved as (
    update tenure.pending pending
    set position = greatest(pending.position, kept.position),
        attempts = kept.attempts,
        head_at = case when kept.attempts = 0 then null
            when pending.position < kept.position then kept.now
            else coalesce(pending.head_at, kept.now) end,
        owner = case when kept.lease_ms is null then null else pending.owner end,
        token = case when kept.lease_ms is null then null else pending.token end,
        due_at = kept.now + coalesce(kept.lease_ms, kept.due_ms) * interval '1 millisecond'
    from kept
    where pending.endpoint = kept.endpoint
      and pending.aggregate = kept.aggregate
      and pending.only_sequence = kept.only_sequence
      and kept.position < kept.last_sequence
),
attempted as (
    select delivery.*, kept.endpoint, kept.now, kept.owner
    from unnest(:delivery_places::bigint[], :delivery_aggregates::text[], :delivery_sequences::bigint[],
            :delivery_attempts::integer[], :delivery_outcomes::text[], :delivery_statuses::integer[],
            :delivery_durations_ms::bigint[], :delivery_errors::text[])
        with ordinality as delivery(place, aggregate, sequence, attempt, outcome, status, duration_ms, error, number)
    join kept on kept.place = delivery.place
),
recorded as (
    insert into tenure.deliveries (endpoint, aggregate, sequence, attempt, at, outcome, status, duration_ms, error)
    select endpoint, coalesce(aggregate, ''), sequence, attempt, now, outcome, status, duration_ms, error
    from attempted
    order by number
),
noted as (
    insert into tenure.operator_log (actor, action, detail)
    select 'outbox:' || attempted.owner, 'dead_letter_message', json_build_object('endpoint', attempted.endpoint,
        'sequence', attempted.sequence, 'message', message.id, 'topic', message.topic, 'attempt', attempted.attempt,
        'error', attempted.error)::text
    from attempted
    left join tenure.outbox message on message.sequence = attempted.sequence
    where attempted.outcome = 'dead'
    order by attempted.number
)
select kept.place from kept
