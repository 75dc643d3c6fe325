-- The first due jobs of each of these keys, in the order of claiming. Nothing is locked.
select due.id, :queue::text as queue, wanted.key, due.priority, due.due_at, due.losses
from (select tenure.clock() as now) clock,
    unnest(:keys::text[]) wanted(key),
    lateral (
        select job.id, job.priority, job.due_at, job.losses
        from tenure.jobs job
        where job.queue = :queue::text
          and job.partition_key = wanted.key
          and job.partition_key is not null
          -- part: due
        order by job.priority desc, job.due_at, job.id
        limit :each
    ) due
order by wanted.key, due.priority desc, due.due_at, due.id
