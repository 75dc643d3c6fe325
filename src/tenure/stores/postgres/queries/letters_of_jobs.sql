-- The dead letters of these jobs.
select * from tenure.dead_letters where job_id = any (:ids::uuid[])
