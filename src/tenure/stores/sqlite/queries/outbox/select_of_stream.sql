-- The next messages of a leased stream, in order.
select sequence, id, aggregate, topic, body, headers, job_id, correlation_id, trace, at, endpoint_count
from tenure_outbox
where aggregate = :aggregate and sequence > :position and sequence <= :last_sequence
order by sequence
limit :limit
