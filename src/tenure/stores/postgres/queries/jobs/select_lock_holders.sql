-- The sessions whose transactions have locked these jobs' rows: process id, program, state, and age of the transaction.
-- A job without a row: its lock is gone, is shared by several transactions, or the role may not see that session.
select job.id, activity.pid, activity.application_name, activity.state,
    extract(epoch from clock_timestamp() - activity.xact_start)::double precision as open_seconds
from tenure.jobs job
join pg_locks held on held.locktype = 'transactionid' and held.transactionid = job.xmax and held.granted
join pg_stat_activity activity on activity.pid = held.pid
where job.id = any (:ids::uuid[])
  and held.mode = 'ExclusiveLock'
