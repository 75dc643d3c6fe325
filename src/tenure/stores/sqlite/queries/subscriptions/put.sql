-- Creates or replaces a subscription.
insert into tenure_subscriptions (endpoint, topic, filters, vocabulary, block_seconds, updated_at)
values (:endpoint, :topic, :filters, :vocabulary, :block_seconds, :now)
on conflict (endpoint, topic) do update
set filters = excluded.filters, vocabulary = excluded.vocabulary, block_seconds = excluded.block_seconds,
    updated_at = excluded.updated_at
where (filters, vocabulary, block_seconds) is not (excluded.filters, excluded.vocabulary, excluded.block_seconds)
