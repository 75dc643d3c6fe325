-- Jobs by their ids, as they stand. No row: no such job.
select job.*
from tenure.jobs job
where job.id = any (:ids::uuid[])
