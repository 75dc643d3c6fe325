-- A page of the log in the order of (transaction, job, revision), after a position. In a snapshot, where nothing can
-- commit late: so also what the tail would still hold back.
select told.*, null::text as correlation_id, null::text as trace
from tenure.log told
where told.tx >= :tx::xid8
  and (told.tx > :tx::xid8 or (told.job_id, told.rev) > (:job_id::uuid, :rev::integer))
order by told.tx, told.job_id, told.rev
limit :limit
