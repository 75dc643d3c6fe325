-- The messages of these jobs without their delivery.
select job_id, id, aggregate, topic, body, headers
from tenure.outbox
where job_id = any (:ids::uuid[])
