-- The request ids of the claims that took these jobs.
select distinct event.request_id
from json_each(:ids) gone
cross join tenure_events event indexed by tenure_events_job on event.job_id = gone.value
where event.type = 'claimed'
