-- A message by its id. No row: there is none.
select sequence, id, aggregate, topic, body, headers, job_id, correlation_id, trace, at, endpoint_count
from tenure_outbox
where id = :id
