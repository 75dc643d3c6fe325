-- Only what tells whether these jobs are still as they were read: for callers that hold the record.
select job.id, job.rev, job.token
from json_each(:ids) wanted
join tenure_jobs job on job.id = wanted.value
