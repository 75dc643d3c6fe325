-- Write the record of a dead-lettered job as it was, also how it was dealt with, before the job. Refused outside of an
-- import where it was dealt with, and where the job has one already.
insert into tenure_dead_letters (
    job_id, reason_code, stage, last_error, attempts, at, last_owner, last_lease_expires_at, correlation_id, handled_at,
    handled_as
)
values (
    :job_id, :reason_code, :stage, :last_error, :attempts, :at, :last_owner, :last_lease_expires_at, :correlation_id,
    :handled_at, :handled_as
)
