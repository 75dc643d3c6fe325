-- Records the rate usage of one partition.
insert into tenure_rate_usage (queue, key, usage, until_at)
values (:queue, :key, :usage, :until_at)
on conflict (queue, key) do update set usage = excluded.usage, until_at = excluded.until_at
