-- What these keys of one queue have spent of their rate.
select spent.key, spent.spent
from tenure.limits spent
where spent.queue = :queue::text
  and spent.key = any (:keys::text[])
