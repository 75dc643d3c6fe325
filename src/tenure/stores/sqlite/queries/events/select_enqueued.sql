-- The enqueue of a job, found by its request id or else by its id. No row: the request is new.
select event.job_id, event.digest, event.detail
from tenure_events event
where event.rev = 1
    and event.job_id = coalesce(
        (select id from tenure_jobs where request_id is not null and request_id = :request_id),
        (select id from tenure_jobs where id = :id)
    )
