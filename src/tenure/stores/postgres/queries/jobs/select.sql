-- Jobs by their ids, without their tokens. No row: no such job.
select job.*
from tenure.job_records job
where job.id = any (:ids::uuid[])
