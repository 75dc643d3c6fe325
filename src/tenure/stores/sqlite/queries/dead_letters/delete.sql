-- Deletes the dead letters of these jobs.
delete from tenure_dead_letters
where job_id in (select value from json_each(:ids))
