-- What these keys of one queue have spent of their rate.
select spent.key, spent.spent
from tenure_limits spent
where spent.queue = :queue and spent.key in (select value from json_each(:keys))
