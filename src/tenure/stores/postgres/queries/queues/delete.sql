-- Deletes a queue's pause and limits, and records the actor. Returns how many queues that were.
with gone as (
    delete from tenure.queues queue
    where queue.name = :name::text
    returning queue.name
),
usage as (
    delete from tenure.rate_usage usage
    where usage.queue = :name::text
),
noted as (
    insert into tenure.operator_log (actor, action, detail)
    select :actor::text, 'forget_queue', :detail::text
    from gone
)
select count(*) from gone
