-- What a job was told, in order.
select rev, name, payload, at
from tenure_signals
where job_id = :job_id
order by rev
