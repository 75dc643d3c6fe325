-- Write what was said of a queue, and how far it has come. Refused where something is known of it already.
insert into tenure_queues (
    name, paused_at, concurrency_max, key_concurrency_max, rate_count, rate_seconds, key_rate_count, key_rate_seconds,
    fair, turn, spent, updated_at
)
values (
    :name, :paused_at, :concurrency_max, :key_concurrency_max, :rate_count, :rate_seconds, :key_rate_count,
    :key_rate_seconds, :fair, :turn, :spent, :updated_at
)
