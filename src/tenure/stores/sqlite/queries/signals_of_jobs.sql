-- The signals that these jobs were sent, each job's in the order of revisions.
select job_id, rev, name, payload, at
from tenure_signals
where job_id in (select value from json_each(:ids))
order by job_id, rev
