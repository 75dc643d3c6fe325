-- Pauses a queue, and writes down who did it, unless it is paused already. Answers the queue; no row means that somebody
-- else is just making it, so that it is to be asked again.
with paused as (
    insert into tenure.queues as queue (name, paused_at, updated_at)
    values (:name::text, tenure.clock(), tenure.clock())
    on conflict (name) do update
    set paused_at = excluded.paused_at, updated_at = excluded.updated_at
    where queue.paused_at is null
    returning queue.*
),
noted as (
    insert into tenure.operator_log (actor, action, detail)
    select :actor::text, 'pause_queue', :detail::text
    from paused
),
shown as (
    select * from paused
    union all
    select * from tenure.queues queue where queue.name = :name::text and not exists (select from paused)
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
