-- The queues that are paused or have limits, or the one with this name.
with shown as (
    select queue.* from tenure.queues queue where :name::text is null or queue.name = :name::text
)
-- part: with_leased
order by shown.name
