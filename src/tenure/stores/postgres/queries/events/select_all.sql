-- A page of the log in the order of (transaction, job, revision), after a position. In a snapshot, where nothing can
-- commit late: so also what the tail would still hold back.
select event.*, null::text as correlation_id, null::text as trace
from tenure.log event
where event.tx >= :tx::xid8
  and (event.tx > :tx::xid8 or (event.job_id, event.rev) > (:job_id::uuid, :rev::integer))
order by event.tx, event.job_id, event.rev
limit :limit
