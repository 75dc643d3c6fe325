-- Registers a worker, or records that it was seen. The time of the first registration stays.
insert into tenure_workers (id, host, pid, version, queues, kinds, concurrency, prunes, started_at, seen_at)
values (:id, :host, :pid, :version, :queues, :kinds, :concurrency, :prunes, :at, :at)
on conflict (id) do update
set host = excluded.host,
    pid = excluded.pid,
    version = excluded.version,
    queues = excluded.queues,
    kinds = excluded.kinds,
    concurrency = excluded.concurrency,
    prunes = excluded.prunes,
    seen_at = excluded.seen_at,
    stopped_at = null
