-- The next messages of leased streams, each stream's in order: those of an aggregate after a position, or the one with this
-- sequence. A stream without a row has no message that can be read.
select stream.key as place, message.sequence, message.id, message.aggregate, message.topic, message.body, message.headers,
    message.job_id, message.correlation_id, message.trace, message.at, message.endpoint_count
from json_each(:streams) stream
cross join tenure_outbox message
where message.sequence in (
    select next.sequence
    from tenure_outbox next
    where next.aggregate = json_extract(stream.value, '$[0]')
        and next.sequence > json_extract(stream.value, '$[1]')
        and next.sequence <= json_extract(stream.value, '$[2]')
    order by next.sequence
    limit :limit
)
union all
select stream.key, message.sequence, message.id, message.aggregate, message.topic, message.body, message.headers,
    message.job_id, message.correlation_id, message.trace, message.at, message.endpoint_count
from json_each(:streams) stream
cross join tenure_outbox message
where message.sequence = json_extract(stream.value, '$[3]')
order by 1, 2
