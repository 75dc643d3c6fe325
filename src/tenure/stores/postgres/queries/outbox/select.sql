-- A message by its id. No row: there is none. A time that cannot be read is null.
select sequence, id, aggregate, topic, body, headers, job_id, correlation_id, trace,
    case when tenure.is_readable(at) then at end as at, endpoint_count
from tenure.outbox
where id = :id::uuid
