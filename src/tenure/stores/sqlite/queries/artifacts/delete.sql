-- Deletes the artifacts of these jobs.
delete from tenure_artifacts
where job_id in (select value from json_each(:ids))
