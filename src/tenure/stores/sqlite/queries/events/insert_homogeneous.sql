-- Appends one event for each of many jobs. They differ only in job id and digest; shared columns are bound once.
-- An enqueue without a request id has the job id as its request id.
-- Refused where events/insert is.
with given (job_id, digest) as (
    values (:job_id, :digest)
)
insert into tenure_events (
    job_id, digest, request_id,
    -- each shared event column: {}
)
select
    given.job_id, given.digest, ifnull(:request_id, given.job_id),
    -- each shared event column: :{}
from given
