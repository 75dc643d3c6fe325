-- Writes messages, in their order. Their sequences are drawn at the commit.
-- Returns the ids that were written; one that is missing was used before.
with written as (
    insert into tenure.outbox (tx, id, aggregate, topic, body, headers, job_id, correlation_id, trace, at)
    select pg_current_xact_id(), message.id, message.aggregate, message.topic, message.body, message.headers, message.job_id,
        message.correlation_id, message.trace, tenure.clock()
    from unnest(:ids::uuid[], :aggregates::text[], :topics::text[], :bodies::text[], :headers::text[], :job_ids::uuid[],
            :correlation_ids::text[], :traces::text[])
        with ordinality as message(id, aggregate, topic, body, headers, job_id, correlation_id, trace, number)
    order by message.number
    on conflict (id) do nothing
    returning id
)
select written.id
from set_config('tenure.writer', 'store', true) writer
left join written on true
