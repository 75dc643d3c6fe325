-- The claims that won these jobs, of which none is left.
select distinct event.request_id
from json_each(:ids) gone
cross join tenure_events event on event.job_id = gone.value
where event.type = 'claimed'
