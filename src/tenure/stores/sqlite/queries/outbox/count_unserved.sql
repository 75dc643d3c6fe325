-- How many messages no endpoint subscribed to.
select count(*)
from tenure_outbox
where endpoint_count = 0
