-- How many jobs of a status and kind ended up to a time.
select count(*)
from tenure.jobs job
where job.status = :status::text and job.kind = :kind::text and job.finished_at <= :before::timestamptz
