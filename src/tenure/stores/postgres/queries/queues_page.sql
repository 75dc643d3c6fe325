-- A page of the queues of which something was said, in the order of their names, after the given one.
select
    name, paused_at, concurrency_max, key_concurrency_max, rate_count, rate_seconds, key_rate_count, key_rate_seconds,
    fair, turn, spent, updated_at
from tenure.queues
where name > :name
order by name
limit :limit
