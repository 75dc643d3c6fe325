-- The rate usage of these partitions of one queue.
select usage.key, usage.usage
from tenure_rate_usage usage
where usage.queue = :queue and usage.key in (select value from json_each(:keys))
