-- The limits of these queues, locked in the order of names, and the time once they are. A claim within limits keeps
-- the lock to the end of its transaction, so that two claims never use the same free slot.
with locked as materialized (
    select queue.*
    from tenure.queues queue
    where queue.name = any (:queues::text[]) and tenure.has_limits(queue)
    order by queue.name
    for no key update
),
clock as materialized (
    select tenure.clock() as now
    from (select count(*) from locked) everything_is_locked
)
select clock.now, locked.*
from clock
left join locked on true
order by locked.name
