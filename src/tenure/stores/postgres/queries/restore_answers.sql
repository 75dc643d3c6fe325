-- Writes which jobs answered which requests. The session must have said that it is an import.
insert into tenure.answers (request_id, job_id, digest, detail, at)
select request_id, job_id, digest, detail, at
from json_populate_recordset(null::tenure.answers, :rows::json)
