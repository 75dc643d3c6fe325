-- Messages that no endpoint subscribed to have one now.
update tenure_outbox as message
set endpoint_count = 1
where message.at >= :since
    and message.endpoint_count = 0
    and exists (
        select 1 from tenure_subscriptions subscription where subscription.endpoint = :endpoint and (message.topic = subscription.topic or (substr(subscription.topic, -1) = '*'
        and substr(message.topic, 1, length(subscription.topic) - 1) = substr(subscription.topic, 1, length(subscription.topic) - 1)))
    )
