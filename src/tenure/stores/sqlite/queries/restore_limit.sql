-- Write what a key has spent. Refused where that is known already.
insert into tenure_limits (queue, key, spent, until_at)
values (:queue, :key, :spent, :until_at)
