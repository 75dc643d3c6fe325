-- A page of messages in the order of sequences. A time that cannot be read is null.
select message.sequence, message.id, message.aggregate, message.topic, message.body, message.headers, message.job_id,
    message.correlation_id, message.trace,
    case when tenure.is_readable(message.at) then message.at end as at, message.endpoint_count
from tenure.outbox message
where message.sequence > :after::bigint
  and (:aggregate::text is null or message.aggregate = :aggregate::text)
  and (:topic::text is null or tenure.topic_matches(message.topic, :topic::text))
  and (:job_id::uuid is null or message.job_id = :job_id::uuid)
  and case :state::text
      when 'unserved' then message.endpoint_count = 0
      when 'dead' then exists (
          select from tenure.deliveries delivery
          where delivery.sequence = message.sequence and delivery.outcome = 'dead' and delivery.handled_at is null
            and (:endpoint::text is null or delivery.endpoint = :endpoint::text)
      )
      when 'pending' then exists (
          select from tenure.pending pending
          join tenure.subscriptions subscription on subscription.endpoint = pending.endpoint
              and tenure.topic_matches(message.topic, subscription.topic)
          where (:endpoint::text is null or pending.endpoint = :endpoint::text)
            and ((pending.only_sequence = 0 and pending.aggregate = message.aggregate
                  and pending.position < message.sequence)
                or pending.only_sequence = message.sequence)
      )
      else :endpoint::text is null or exists (
          select from tenure.subscriptions subscription
          where subscription.endpoint = :endpoint::text and tenure.topic_matches(message.topic, subscription.topic)
      )
  end
order by message.sequence
limit :limit
