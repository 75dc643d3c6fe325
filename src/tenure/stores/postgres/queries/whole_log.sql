-- A page of the log in the order of (transaction, job, revision), after a position. In a snapshot, where nothing can
-- commit late: so also what the tail would still hold back.
with heads as materialized (
    select head.*
    from tenure.events head
    where head.actor is not null
      and head.tx >= :tx::xid8
      and (head.tx > :tx::xid8 or (head.job_id, head.rev) >= (:job_id::uuid, :rev::integer))
    order by head.tx, head.job_id, head.rev
    limit :limit + 1
),
-- part: told
    null::text as correlation_id, null::text as trace
from told
where told.tx > :tx::xid8 or (told.job_id, told.rev) > (:job_id::uuid, :rev::integer)
order by told.tx, told.job_id, told.rev
limit :limit
