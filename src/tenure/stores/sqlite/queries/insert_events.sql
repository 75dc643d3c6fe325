-- Write events of the log. Refused where a revision has its event already, where the lifecycle has no such
-- arrow, and for a second commit of a job.
insert into tenure_events (
    job_id, rev, type, from_status, to_status, at, attempt, actor, request_id, cause, detail, digest, until_at,
    commits, version
)
values (
    :job_id, :rev, :type, :from_status, :to_status, :at, :attempt, :actor, :request_id, :cause, :detail, :digest,
    :until_at, :commits, :version
)
