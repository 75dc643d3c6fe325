-- Puts messages into the outbox, each under the next number of its aggregate. The stream's row is locked until the
-- commit, so that numbers are in the order of commits; every writer locks rows in the order of aggregates.
-- Returns the ids that were written; one that is missing was used before.
with message as materialized (
    select *
    from unnest(:ids::uuid[], :aggregates::text[], :topics::text[], :bodies::text[], :headers::text[], :job_ids::uuid[],
            :correlation_ids::text[], :traces::text[])
        with ordinality as message(id, aggregate, topic, body, headers, job_id, correlation_id, trace, number)
),
stream as (
    insert into tenure.streams (aggregate, written, due_at)
    select message.aggregate, count(*), tenure.clock()
    from message
    group by message.aggregate
    order by message.aggregate collate "C"
    on conflict (aggregate) do update
    set written = streams.written + excluded.written,
        due_at = coalesce(streams.due_at, excluded.due_at)
    returning aggregate, written
),
written as (
    insert into tenure.outbox (aggregate, sequence, id, topic, body, headers, job_id, correlation_id, trace, at)
    select message.aggregate,
        stream.written - count(*) over (partition by message.aggregate)
            + row_number() over (partition by message.aggregate order by message.number),
        message.id, message.topic, message.body, message.headers, message.job_id, message.correlation_id,
        message.trace, tenure.clock()
    from message
    join stream on stream.aggregate = message.aggregate
    on conflict (id) do nothing
    returning id
)
select written.id
from set_config('tenure.writer', 'store', true) writer
left join written on true
