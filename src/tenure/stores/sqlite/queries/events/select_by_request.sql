-- The events that these requests have written, by job and request id. No row: the request is new.
select
    event.position, job.correlation_id, job.trace,
    -- each event column: event.{}
from json_each(:requests) wanted
cross join tenure_events event
    on event.job_id = json_extract(wanted.value, '$[0]')
    and event.request_id = json_extract(wanted.value, '$[1]')
join tenure_jobs job on job.id = event.job_id
order by event.job_id, event.rev
