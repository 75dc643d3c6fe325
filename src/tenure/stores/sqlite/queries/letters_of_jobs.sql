-- The dead letters of these jobs.
select
    job_id, reason_code, stage, last_error, attempts, at, last_owner, last_lease_expires_at, correlation_id, handled_at,
    handled_as
from tenure_dead_letters
where job_id in (select value from json_each(:ids))
