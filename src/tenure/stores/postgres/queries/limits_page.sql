-- A page of what keys have spent, in the order of queues and keys, after the given one.
select queue, key, spent, until_at
from tenure.rate_usage
where (queue, key) > (:queue, :key)
order by queue, key
limit :limit
