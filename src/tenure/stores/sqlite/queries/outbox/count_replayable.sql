-- How many messages since a time the endpoint subscribes to.
select count(*)
from tenure_outbox message
where message.at >= :since
    and exists (
        select 1 from tenure_subscriptions subscription where subscription.endpoint = :endpoint and (message.topic = subscription.topic or (substr(subscription.topic, -1) = '*'
        and substr(message.topic, 1, length(subscription.topic) - 1) = substr(subscription.topic, 1, length(subscription.topic) - 1)))
    )
