-- The queues that are `shown`, and how many of their jobs are claimed or running.
select shown.*, permits.held
from shown,
lateral (
    select count(*) as held
    from tenure.jobs job
    where job.queue = shown.name
      and job.status in ('claimed', 'running', 'stalled')
      and job.status <> 'stalled'
) permits
