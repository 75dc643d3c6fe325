-- The state for deciding a request again: each row, the database's clock, and the events that its request id has
-- already written, all of one snapshot; for a request that sends signals, how many its job was sent. A null id means
-- that there is no such job.
select wanted.number, job.*, event.rev as event_rev, event.type as event_type, event.from_status, event.to_status,
    event.at as event_at, event.attempt as event_attempt, event.actor, event.request_id as event_request_id,
    event.cause, event.detail, event.digest, event.until_at, event.commits, event.version, tenure.clock() as now,
    case when wanted.signals then (select count(*) from tenure.signals signal where signal.job_id = wanted.id) else 0 end as signals
from unnest(:ids::uuid[], :requests::text[], :signals::boolean[]) with ordinality wanted(id, request_id, signals, number)
left join tenure.jobs job on job.id = wanted.id
left join tenure.log event on event.job_id = wanted.id and event.request_id = wanted.request_id
order by wanted.number, event.rev
