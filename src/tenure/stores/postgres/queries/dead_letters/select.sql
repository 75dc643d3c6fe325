-- The dead letters of these jobs. A job without one has no row.
select * from tenure.dead_letters where job_id = any (:ids::uuid[])
