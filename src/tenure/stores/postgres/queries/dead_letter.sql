-- The record of one dead-lettered job. No row: it is not one.
select * from tenure.dead_letters where job_id = :job_id
