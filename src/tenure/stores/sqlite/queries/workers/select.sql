-- The workers of these ids, or without ids those that have not stopped, in the order of ids.
select id, host, pid, version, queues, kinds, concurrency, prunes, started_at, seen_at, stopped_at
from tenure_workers
where case when :ids is null then stopped_at is null else id in (select value from json_each(:ids)) end
order by id
