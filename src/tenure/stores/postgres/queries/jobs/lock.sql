-- Waits for the lock on one job's row, and holds it until the end of the transaction. Writes nothing.
select job.id
from tenure.jobs job
where job.id = :id
for no key update
