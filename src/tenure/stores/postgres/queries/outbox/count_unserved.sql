-- How many messages no endpoint subscribed to, and the clock.
select count(*) as unserved, tenure.clock() as at
from tenure.outbox
where endpoint_count = 0 and tx is null
