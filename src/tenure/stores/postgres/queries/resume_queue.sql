-- Lets a queue go on, and writes down who did it, unless it is not paused. Answers the queue, if anything is known of it.
with resumed as (
    update tenure.queues queue
    set paused_at = null, updated_at = tenure.clock()
    where queue.name = :name::text and queue.paused_at is not null
    returning queue.*
),
noted as (
    insert into tenure.operator_log (actor, action, detail)
    select :actor::text, 'resume_queue', :detail::text
    from resumed
),
shown as (
    select * from resumed
    union all
    select * from tenure.queues queue where queue.name = :name::text and not exists (select from resumed)
)
select shown.*, permits.held
from shown,
lateral (
    select count(*) as held
    from tenure.jobs job
    where job.queue = shown.name
      and job.status in ('claimed', 'running', 'stalled')
      and job.status <> 'stalled'
) permits
