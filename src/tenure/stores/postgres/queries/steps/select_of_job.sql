-- All steps of a job, in the order of completion.
select *
from tenure.steps
where job_id = :job_id::uuid
order by number
