-- Deletes these jobs.
-- Guard: they have ended, and the writer is retention.
delete from tenure_jobs
where id in (select value from json_each(:ids))
