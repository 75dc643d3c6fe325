-- What these keys of one queue have spent of their rate.
select spent.key, spent.spent
from tenure.rate_usage spent
where spent.queue = :queue::text
  and spent.key = any (:keys::text[])
