-- Writes a worker down, or that it was seen. The first time is kept, and a worker that is seen has not stopped.
insert into tenure.workers (id, host, pid, version, queues, kinds, concurrency, prunes, started_at, seen_at)
select :id::text, :host::text, :pid::integer, :version::text, :queues::text, :kinds::text, :concurrency::integer,
    :prunes::boolean, clock.now, clock.now
from (select tenure.clock() as now) clock
on conflict (id) do update
set host = excluded.host, pid = excluded.pid, version = excluded.version, queues = excluded.queues,
    kinds = excluded.kinds, concurrency = excluded.concurrency,
    prunes = excluded.prunes, seen_at = excluded.seen_at, stopped_at = null
