-- The log in the order of (transaction, job, revision), after a position, which may lie between a claim and its start.
-- Guard: only transactions below every one that is still open, so that an event that commits late is never skipped.
select event.*, job.correlation_id, job.trace
from (
    select told.*
    from tenure.log told
    where told.tx >= :tx::xid8
      and told.tx < pg_snapshot_xmin(pg_current_snapshot())
      and (told.tx > :tx::xid8 or (told.job_id, told.rev) > (:job_id::uuid, :rev::integer))
    order by told.tx, told.job_id, told.rev
    limit :limit
) event
left join tenure.jobs job on job.id = event.job_id
order by event.tx, event.job_id, event.rev
