-- Writes what was said of queues, and how far they have come.
insert into tenure.queues (name, paused_at, concurrency_max, key_concurrency_max, rate_count, rate_seconds,
    key_rate_count, key_rate_seconds, fair, turn, spent, updated_at)
select name, paused_at, concurrency_max, key_concurrency_max, rate_count, rate_seconds, key_rate_count,
    key_rate_seconds, fair, turn, spent, updated_at
from json_populate_recordset(null::tenure.queues, :rows::json)
