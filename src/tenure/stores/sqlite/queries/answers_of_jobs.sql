-- The requests that these jobs answered for another, each job's in the order of the requests' ids.
select request_id, job_id, digest, detail, at
from tenure_answers
where job_id in (select value from json_each(:ids))
order by job_id, request_id
