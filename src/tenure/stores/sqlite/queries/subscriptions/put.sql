-- Creates or replaces a subscription.
insert into tenure_subscriptions (endpoint, topic, filters, block_seconds, updated_at)
values (:endpoint, :topic, :filters, :block_seconds, :now)
on conflict (endpoint, topic) do update
set filters = excluded.filters, block_seconds = excluded.block_seconds, updated_at = excluded.updated_at
where (filters, block_seconds) is not (excluded.filters, excluded.block_seconds)
