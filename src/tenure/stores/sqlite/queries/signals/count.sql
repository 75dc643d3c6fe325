-- How many signals a job was sent.
select count(*)
from tenure_signals
where job_id = :job_id
