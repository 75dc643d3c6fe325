-- Remove these jobs. The guard lets it happen only to jobs that ended, and only for retention.
delete from tenure_jobs
where id in (select value from json_each(:ids))
