-- Inserts new jobs that differ only in id and payload, after their enqueued events. Shared columns are bound once.
-- Refused where an id is in use.
with given (id, payload) as (
    values (:id, :payload)
)
insert into tenure_jobs (
    id, payload,
    -- each shared new job column: {}
)
select
    given.id, given.payload,
    -- each shared new job column: :{}
from given
