-- Writes which jobs answered which requests. The session must have said that it is an import.
insert into tenure.deduplicated_requests (request_id, job_id, digest, detail, at)
select request_id, job_id, digest, detail, at
from json_populate_recordset(null::tenure.deduplicated_requests, :rows::json)
