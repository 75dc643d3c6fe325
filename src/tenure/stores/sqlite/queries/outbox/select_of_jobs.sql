-- The messages of these jobs without their delivery.
select job_id, message.id, aggregate, topic, body, headers
from json_each(:ids) wanted
cross join tenure_outbox message on message.job_id = wanted.value
