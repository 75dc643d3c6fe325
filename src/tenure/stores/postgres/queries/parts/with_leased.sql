-- The queues that are `shown`, with the number of their jobs that are claimed or running.
select shown.*, counted.leased
from shown,
lateral (
    select count(*) as leased
    from tenure.jobs job
    where job.queue = shown.name
      and job.status in ('claimed', 'running', 'stalled')
      and job.status <> 'stalled'
) counted
