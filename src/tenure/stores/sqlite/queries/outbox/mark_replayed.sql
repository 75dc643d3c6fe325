-- Messages that no endpoint subscribed to have one now.
update tenure_outbox as message
set endpoint_count = 1
where message.at >= :since
    and message.endpoint_count = 0
    and exists (
        select 1 from tenure_subscriptions subscription where subscription.endpoint = :endpoint and
        -- part: topic_matches
    )
