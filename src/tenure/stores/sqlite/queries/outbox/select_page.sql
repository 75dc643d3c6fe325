-- A page of messages in the order of sequences.
select message.sequence, message.id, message.aggregate, message.topic, message.body, message.headers, message.job_id,
    message.correlation_id, message.trace, message.at, message.endpoint_count
from tenure_outbox message
where message.sequence > :after
    and (:aggregate is null or message.aggregate = :aggregate)
    and (:topic is null or exists (
        select 1 from (select :topic as topic) subscription where
        -- part: topic_matches
    ))
    and (:job_id is null or message.job_id = :job_id)
    and case :state
        when 'unserved' then message.endpoint_count = 0
        when 'dead' then exists (
            select 1 from tenure_deliveries delivery
            where delivery.sequence = message.sequence and delivery.outcome = 'dead' and delivery.handled_at is null
                and (:endpoint is null or delivery.endpoint = :endpoint)
        )
        when 'pending' then exists (
            select 1 from tenure_pending pending
            join tenure_subscriptions subscription on subscription.endpoint = pending.endpoint and
            -- part: topic_matches
            where (:endpoint is null or pending.endpoint = :endpoint)
                and ((pending.only_sequence = 0 and pending.aggregate = message.aggregate
                      and pending.position < message.sequence)
                    or pending.only_sequence = message.sequence)
        )
        else :endpoint is null or exists (
            select 1 from tenure_subscriptions subscription where subscription.endpoint = :endpoint and
            -- part: topic_matches
        )
    end
order by message.sequence
limit :limit
