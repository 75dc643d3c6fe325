-- Deletes the steps of these jobs.
delete from tenure_steps
where job_id in (select value from json_each(:ids))
