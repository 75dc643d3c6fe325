-- The digests of the steps of a job.
select digest
from tenure_steps
where job_id = :job_id
