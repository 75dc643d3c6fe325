-- The rules of these queues, locked in the order of names, and the time once they are: whoever claims by rules holds the
-- lock to the end of the transaction, so that two never spend one permit.
with locked as materialized (
    select queue.*
    from tenure.queues queue
    where queue.name = any (:queues::text[]) and tenure.has_limits(queue)
    order by queue.name
    for no key update
),
moment as materialized (
    select tenure.clock() as now
    from (select count(*) from locked) everything_is_locked
)
select moment.now, locked.*
from moment
left join locked on true
order by locked.name
