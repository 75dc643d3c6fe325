-- The log in the order of (transaction, job, revision), after a position, which may lie between a claim and its start.
-- Guard: only transactions below every one that is still open, so that an event that commits late is never skipped.
with heads as materialized (
    select head.*
    from tenure.events head
    where head.actor is not null
      and head.tx >= :tx::xid8
      and head.tx < pg_snapshot_xmin(pg_current_snapshot())
      and (head.tx > :tx::xid8 or (head.job_id, head.rev) >= (:job_id::uuid, :rev::integer))
    order by head.tx, head.job_id, head.rev
    limit :limit + 1
),
-- part: told
    job.correlation_id, job.trace
from told
left join tenure.jobs job on job.id = told.job_id
where told.tx > :tx::xid8 or (told.job_id, told.rev) > (:job_id::uuid, :rev::integer)
order by told.tx, told.job_id, told.rev
limit :limit
