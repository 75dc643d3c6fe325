-- All endpoints with their subscriptions as JSON, in the order of names; or the one of this name.
select endpoint.*, extract(epoch from tenure.clock() - endpoint.failing_since_at)::double precision as failing_seconds, (
    select coalesce(json_agg(json_build_object('endpoint', subscription.endpoint, 'topic', subscription.topic,
        'filters', subscription.filters, 'block_seconds', subscription.block_seconds)
        order by subscription.topic), '[]')::text
    from tenure.subscriptions subscription
    where subscription.endpoint = endpoint.name
) as subscriptions
from tenure.endpoints endpoint
where :name::text is null or endpoint.name = :name::text
order by endpoint.name
