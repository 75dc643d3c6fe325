-- Deletes the signals of these jobs.
delete from tenure_signals
where job_id in (select value from json_each(:ids))
