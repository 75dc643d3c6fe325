-- The jobs of a range of ids, up to :limit of them, by status and kind: when the first of each ended, how many there are, and
-- the last id. Live jobs have no end. No row means that the range has no jobs.
with examined as materialized (
    select job.id, job.status, job.kind, job.finished_at
    from tenure.jobs job
    where job.id > :after::uuid and (:until::uuid is null or job.id <= :until::uuid)
    order by job.id
    limit :limit
)
select examined.status, examined.kind, min(examined.finished_at) as finished_at, count(*) as jobs,
    (select last.id from examined last order by last.id desc limit 1) as last_id
from examined
group by examined.status, examined.kind
