-- Writes messages with what has become of them.
insert into tenure.outbox (aggregate, sequence, id, topic, body, headers, job_id, at, attempts, delivered_at, dead_at,
    last_error)
select aggregate, sequence, id, topic, body, headers, job_id, at, attempts, delivered_at, dead_at, last_error
from json_populate_recordset(null::tenure.outbox, :rows::json)
