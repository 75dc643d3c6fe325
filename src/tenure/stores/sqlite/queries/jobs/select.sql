-- The rows of these jobs, with their tokens. No row: there is no such job.
select
    -- each job column: job.{}
from json_each(:ids) wanted
join tenure_jobs job on job.id = wanted.value
