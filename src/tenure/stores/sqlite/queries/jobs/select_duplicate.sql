-- The live job of a dedupe key. No row: the key is free.
select id
from tenure_jobs indexed by tenure_jobs_dedupe
where dedupe_key is not null
    and finished_at is null
    and dedupe_key = :dedupe_key
