-- The attempts of one job, in order.
select * from tenure.executions where job_id = :job_id order by attempt
