-- All subscriptions, in the order of endpoints and topics.
select endpoint, topic, filters, block_seconds
from tenure_subscriptions
order by endpoint, topic
