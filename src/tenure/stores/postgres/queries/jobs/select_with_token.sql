-- Jobs by their ids, with their tokens. No row: no such job.
select job.*
from tenure.jobs job
where job.id = any (:ids::uuid[])
