-- Records the rate usage of one partition.
insert into tenure_rate_usage (queue, key, spent, until_at)
values (:queue, :key, :spent, :until_at)
on conflict (queue, key) do update set spent = excluded.spent, until_at = excluded.until_at
