-- A page of the steps of a job, in the order of completion.
select *
from tenure.steps
where job_id = :job_id::uuid and number > :after::bigint
order by number
limit :limit
