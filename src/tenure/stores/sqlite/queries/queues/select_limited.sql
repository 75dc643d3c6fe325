-- The limits of those of these queues that have any or are paused. No row: none of them has.
select queue.name, queue.paused_at, queue.concurrency_max, queue.key_concurrency_max, queue.rate_count,
    queue.rate_seconds, queue.key_rate_count, queue.key_rate_seconds, queue.fair, queue.last_key, queue.usage
from tenure_queues queue
where queue.name in (select value from json_each(:queues))
    and (
        queue.paused_at is not null or queue.fair
        or coalesce(queue.concurrency_max, queue.key_concurrency_max, queue.rate_count, queue.key_rate_count) is not null
    )
