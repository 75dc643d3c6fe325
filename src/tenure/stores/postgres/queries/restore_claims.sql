-- Writes what claims have won. The session must have said that it is an import.
insert into tenure.claims (request_id, body, at, job_ids)
select request_id, body, at, job_ids
from json_populate_recordset(null::tenure.claims, :rows::json)
