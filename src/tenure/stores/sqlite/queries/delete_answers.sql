-- Remove what belongs to these jobs.
delete from tenure_answers
where job_id in (select value from json_each(:ids))
