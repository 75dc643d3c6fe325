-- The rate usage of these partition keys of one queue.
select usage.key, usage.usage
from tenure.rate_usage usage
where usage.queue = :queue::text
  and usage.key = any (:keys::text[])
