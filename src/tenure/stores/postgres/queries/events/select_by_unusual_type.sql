-- A page of the events of types of which there are few, within a time, in the order of (time, job, revision). Each such
-- event has a row of its own.
select event.*, job.correlation_id, job.trace
from (
    select unusual.job_id, unusual.rev
    from tenure.events unusual
    where unusual.type = any (:types::text[])
      -- As the index has it.
      and unusual.rev > 1 and not unusual.commits
      and unusual.type in ('retry_scheduled', 'failed', 'halted', 'suspended', 'signalled', 'woken', 'compensated', 'released',
                           'cancel_requested', 'cancelled', 'stalled', 'requeued', 'dead_lettered')
      and unusual.at >= :since::timestamptz
      and unusual.at < :until::timestamptz
      and (unusual.at, unusual.job_id, unusual.rev) > (:since::timestamptz, :job_id::uuid, :rev::integer)
    order by unusual.at, unusual.job_id, unusual.rev
    limit :limit
) page
join tenure.log event on event.job_id = page.job_id and event.rev = page.rev
left join tenure.jobs job on job.id = event.job_id
order by event.at, event.job_id, event.rev
