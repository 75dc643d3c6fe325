-- Writes signals as they were sent. The session must have said that it is an import.
insert into tenure.signals (job_id, rev, name, payload, at)
select job_id, rev, name, payload, at
from json_populate_recordset(null::tenure.signals, :rows::json)
