-- The numbers of the steps of a job, in the order of completion.
select number
from tenure_steps
where job_id = :job_id
order by number
