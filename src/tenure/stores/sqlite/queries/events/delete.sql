-- Deletes the events of these jobs.
delete from tenure_events
where job_id in (select value from json_each(:ids))
