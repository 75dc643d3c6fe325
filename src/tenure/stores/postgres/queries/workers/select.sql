-- The workers of these ids; without ids, those that have not stopped. In the order of ids.
select *
from tenure.workers worker
where case when :ids::text[] is null then worker.stopped_at is null else worker.id = any (:ids::text[]) end
order by worker.id collate "C"
