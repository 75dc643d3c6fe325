-- Waits until no other transaction ends an attempt of the job, and keeps its row from that until the end of the transaction.
-- Writes nothing.
select job.id
from tenure.jobs job
where job.id = :id
for key share
