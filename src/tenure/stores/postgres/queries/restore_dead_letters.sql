-- Writes dead letters as they were, before their jobs. The session must have said that it is an import.
insert into tenure.dead_letters (job_id, reason_code, stage, last_error, attempts, at, last_owner,
    last_lease_expires_at, correlation_id, handled_at, handled_as)
select job_id, reason_code, stage, last_error, attempts, at, last_owner, last_lease_expires_at, correlation_id,
    handled_at, handled_as
from json_populate_recordset(null::tenure.dead_letters, :rows::json)
