-- The rate usage of these partitions of one queue.
select spent.key, spent.spent
from tenure_rate_usage spent
where spent.queue = :queue and spent.key in (select value from json_each(:keys))
