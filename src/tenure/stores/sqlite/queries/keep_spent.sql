-- Notes what a key has spent of its rate.
insert into tenure_limits (queue, key, spent, until_at)
values (:queue, :key, :spent, :until_at)
on conflict (queue, key) do update set spent = excluded.spent, until_at = excluded.until_at
