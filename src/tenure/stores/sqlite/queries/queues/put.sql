-- Replaces the limits of a queue. No row: it has these limits already.
insert into tenure_queues (name, concurrency_max, key_concurrency_max, rate_count, rate_seconds, key_rate_count,
    key_rate_seconds, fair, updated_at)
values (:name, :concurrency_max, :key_concurrency_max, :rate_count, :rate_seconds, :key_rate_count, :key_rate_seconds,
    :fair, :now)
on conflict (name) do update
set concurrency_max = excluded.concurrency_max, key_concurrency_max = excluded.key_concurrency_max,
    rate_count = excluded.rate_count, rate_seconds = excluded.rate_seconds, key_rate_count = excluded.key_rate_count,
    key_rate_seconds = excluded.key_rate_seconds, fair = excluded.fair, updated_at = excluded.updated_at
where (concurrency_max, key_concurrency_max, rate_count, rate_seconds, key_rate_count, key_rate_seconds, fair)
    is not (excluded.concurrency_max, excluded.key_concurrency_max, excluded.rate_count, excluded.rate_seconds,
        excluded.key_rate_count, excluded.key_rate_seconds, excluded.fair)
