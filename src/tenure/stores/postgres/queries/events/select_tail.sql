-- The log in the order of (transaction, job, revision), after a position, which may lie between a claim and its start.
-- Guard: only transactions below every one that is still open, so that an event that commits late is never skipped.
select event.*, job.correlation_id, job.trace
from (
    select event.*
    from tenure.log event
    where event.tx >= :tx::xid8
      and event.tx < pg_snapshot_xmin(pg_current_snapshot())
      and (event.tx > :tx::xid8 or (event.job_id, event.rev) > (:job_id::uuid, :rev::integer))
    order by event.tx, event.job_id, event.rev
    limit :limit
) event
left join tenure.jobs job on job.id = event.job_id
order by event.tx, event.job_id, event.rev
