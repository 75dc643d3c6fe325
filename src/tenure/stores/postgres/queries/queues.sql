-- The queues of which something is known beyond their jobs, and how many of their jobs are claimed or running.
select queue.*, permits.held
from tenure.queues queue,
lateral (
    select count(*) as held
    from tenure.jobs job
    where job.queue = queue.name
      and job.status in ('claimed', 'running', 'stalled')
      and job.status <> 'stalled'
) permits
order by queue.name
