-- Write one event for each of many jobs, alike in all but the job and a digest: what they share is bound once. An enqueue
-- without a request of its own is named by its job. Refused where insert_events.sql is.
with given (job_id, digest) as (
    values (:job_id, :digest)
)
insert into tenure_events (
    job_id, rev, type, from_status, to_status, at, attempt, actor, request_id, cause, detail, digest, until_at,
    commits, version
)
select
    given.job_id, :rev, :type, :from_status, :to_status, :at, :attempt, :actor, ifnull(:request_id, given.job_id),
    :cause, :detail, given.digest, :until_at, :commits, :version
from given
