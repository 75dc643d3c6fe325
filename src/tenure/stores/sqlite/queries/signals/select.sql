-- The signals of a job in the order of revisions.
select job_id, rev, name, payload, at
from tenure_signals
where job_id = :job_id
order by rev
