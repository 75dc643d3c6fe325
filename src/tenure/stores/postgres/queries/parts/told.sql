-- What the index by transactions leads to, and the starts that are left out of it: each was written with its claim, and is
-- told with that.
told as (
    select heads.*
    from heads
    union all
    select start.job_id, start.tx, start.at, start.until_at, start.rev, start.attempt, start.version, start.commits,
        start.type, start.from_status, start.to_status, heads.actor, heads.request_id, start.cause, start.digest,
        start.detail
    from heads
    join tenure.events start on start.job_id = heads.job_id and start.rev = heads.rev + 1 and start.actor is null
    where heads.type = 'claimed'
)
select told.job_id, told.tx, told.at, told.until_at, told.rev, told.attempt, told.version, told.commits, told.type,
    told.from_status, told.to_status, told.actor, coalesce(told.request_id, told.job_id::text) as request_id, told.cause,
    told.digest, told.detail,
