-- Marks dead letters of an endpoint as redriven or discarded: all, or those of these messages. A redriven one is pending on
-- its own. Returns how many.
with dead as materialized (
    select number, sequence
    from tenure.deliveries
    where endpoint = :endpoint::text
      and outcome = 'dead'
      and handled_at is null
      and (:sequences::bigint[] is null or sequence = any (:sequences::bigint[]))
    order by number
    for update
),
handled as (
    update tenure.deliveries delivery
    set handled_at = tenure.clock(), handled_as = :how::text
    from dead
    where delivery.number = dead.number
),
pending as (
    insert into tenure.pending (endpoint, aggregate, only_sequence, position, last_sequence, due_at)
    select :endpoint::text, '', message.sequence, message.sequence - 1, message.sequence, tenure.clock()
    from (select distinct sequence from dead) dead
    join tenure.outbox message on message.sequence = dead.sequence
    where :how::text = 'redriven'
    order by message.sequence
    on conflict do nothing
),
noted as (
    insert into tenure.operator_log (actor, action, detail)
    select :actor::text, :action::text, :detail::text
    where exists (select from dead)
)
select count(*) from dead
