-- About how many finished jobs there are, by the last vacuum or analyze: those that are neither due some time nor leased; and
-- whether a worker that was seen recently removes them.
select greatest(jobs.reltuples - greatest(ready.reltuples, 0) - greatest(leased.reltuples, 0), 0)::bigint as jobs, exists (
    select from tenure.workers worker
    where worker.prunes
      and worker.stopped_at is null
      and worker.seen_at > tenure.clock() - :seen_seconds * interval '1 second'
) as pruned
from pg_class jobs, pg_class ready, pg_class leased
where jobs.oid = 'tenure.jobs'::regclass
  and ready.oid = 'tenure.jobs_ready'::regclass
  and leased.oid = 'tenure.jobs_leased'::regclass
