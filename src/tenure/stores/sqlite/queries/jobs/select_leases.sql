-- The revision and token of these jobs, for a caller that already has the record.
select job.id, job.rev, job.token
from json_each(:ids) wanted
join tenure_jobs job on job.id = wanted.value
