-- The queues that are `shown`, with the number of their jobs that are claimed or running.
select shown.*, leased.held
from shown,
lateral (
    select count(*) as held
    from tenure.jobs job
    where job.queue = shown.name
      and job.status in ('claimed', 'running', 'stalled')
      and job.status <> 'stalled'
) leased
