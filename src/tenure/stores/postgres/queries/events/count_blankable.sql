-- How many progress events up to a time have a detail that a later event of the job replaces.
select count(*)
from tenure.events event
where event.type = 'progress'
  and event.detail is not null
  and event.at <= :before::timestamptz
  and exists (
    select from tenure.events later
    where later.job_id = event.job_id and later.rev > event.rev and later.type in ('progress', 'claimed')
  )
