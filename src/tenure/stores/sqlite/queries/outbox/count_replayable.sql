-- How many messages since a time the endpoint subscribes to.
select count(*)
from tenure_outbox message
where message.at >= :since
    and exists (
        select 1 from tenure_subscriptions subscription where subscription.endpoint = :endpoint and
        -- part: topic_matches
    )
