    (message.topic = subscription.topic or (substr(subscription.topic, -1) = '*'
        and substr(message.topic, 1, length(subscription.topic) - 1) = substr(subscription.topic, 1, length(subscription.topic) - 1)))
