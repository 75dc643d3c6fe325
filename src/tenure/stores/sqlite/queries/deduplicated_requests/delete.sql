-- Deletes the deduplicated requests of these jobs.
delete from tenure_deduplicated_requests
where job_id in (select value from json_each(:ids))
