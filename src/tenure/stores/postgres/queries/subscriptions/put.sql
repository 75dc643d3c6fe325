-- Creates or replaces subscriptions of an endpoint. Those that are the same stay as they are.
insert into tenure.subscriptions as subscription (endpoint, topic, filters, block_seconds, updated_at)
select :endpoint::text, given.topic, given.filters, given.block_seconds, tenure.clock()
from unnest(:topics::text[], :filters::text[], :block_seconds::double precision[])
    as given(topic, filters, block_seconds)
on conflict (endpoint, topic) do update
set filters = excluded.filters, block_seconds = excluded.block_seconds, updated_at = excluded.updated_at
where (subscription.filters, subscription.block_seconds)
    is distinct from (excluded.filters, excluded.block_seconds)
