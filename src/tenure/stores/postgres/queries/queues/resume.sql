-- Resumes a queue, and records the actor. Returns the queue. No row: it is not paused.
with shown as (
    update tenure.queues queue
    set paused_at = null, updated_at = tenure.clock()
    where queue.name = :name::text and queue.paused_at is not null
    returning queue.*
),
noted as (
    insert into tenure.operator_log (actor, action, detail)
    select :actor::text, 'resume_queue', :detail::text
    from shown
)
-- part: with_leased
