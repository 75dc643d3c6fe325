-- Makes all messages since a time pending again for an endpoint that subscribes to them. A lease is revoked, so that its
-- processor cannot move the position forward again. Returns how many messages.
with message as materialized (
    select message.id, message.sequence, message.aggregate
    from tenure.outbox message
    where message.at >= :since::timestamptz
      and message.tx is null
      and exists (
          select from tenure.subscriptions subscription
          where subscription.endpoint = :endpoint::text and tenure.topic_matches(message.topic, subscription.topic)
      )
),
rewound as (
    insert into tenure.pending as pending (endpoint, aggregate, only_sequence, position, last_sequence, due_at)
    select :endpoint::text, coalesce(message.aggregate, ''),
        case when message.aggregate is null then message.sequence else 0 end as only_sequence,
        min(message.sequence) - 1, max(message.sequence), tenure.clock()
    from message
    group by coalesce(message.aggregate, ''), only_sequence
    order by coalesce(message.aggregate, ''), only_sequence
    on conflict (endpoint, aggregate, only_sequence) do update
    set position = least(pending.position, excluded.position),
        last_sequence = greatest(pending.last_sequence, excluded.last_sequence),
        due_at = excluded.due_at,
        attempts = 0,
        head_at = null,
        owner = null,
        token = null
),
served as (
    update tenure.outbox outbox
    set endpoint_count = 1
    from message
    where outbox.id = message.id
      and outbox.endpoint_count = 0
),
noted as (
    insert into tenure.operator_log (actor, action, detail)
    select :actor::text, 'replay_outbox', :detail::text
)
select count(*) from message
