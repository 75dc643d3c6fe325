-- The signals of these jobs.
select job_id, rev, name, payload
from json_each(:ids) wanted
cross join tenure_signals signal on signal.job_id = wanted.value
