-- Writes events of the log under numbers of transactions that have passed. The session must have said that it is an
-- import. Refused where there is a job, where a revision has its event already, and where the lifecycle has no such arrow.
insert into tenure.events (job_id, tx, at, until_at, rev, attempt, version, commits, type, from_status, to_status, actor,
    request_id, cause, digest, detail)
select job_id, tx, at, until_at, rev, attempt, version, commits, type, from_status, to_status, actor, request_id, cause,
    digest, detail
from json_populate_recordset(null::tenure.events, :rows::json)
