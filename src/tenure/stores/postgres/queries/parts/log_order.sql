-- One load has written all restored events; the oldest event that is ahead of this cluster is one of them.
load as materialized (
    select event.xmin as transaction_id
    from tenure.events event
    where event.tx >= :reached::bigint::text::xid8
    order by event.at, event.job_id, event.rev
    limit 1
),
last_restored as materialized (
    select max(event.at) as at
    from tenure.events event
    join load on event.xmin = load.transaction_id
),
-- Restored events in their order, then what was added since. A job's events stay in the order of its revisions.
placed as (
    select event.job_id, event.rev, event.at > last_restored.at as added,
        max(event.tx::text::bigint)
            over (partition by event.job_id, event.at > last_restored.at order by event.rev) as place
    from tenure.events event
    cross join last_restored
),
-- Job and revision order the events of one position: a new one begins where they do not grow.
runs as (
    select ordered.job_id, ordered.rev, sum(ordered.begins) over (
        order by ordered.added, ordered.place, ordered.job_id, ordered.rev) as number
    from (
        select placed.*, case
            when (placed.job_id, placed.rev) > (lag(placed.job_id) over log_order, lag(placed.rev) over log_order) then 0
            else 1
        end as begins
        from placed
        window log_order as (order by placed.added, placed.place, placed.job_id, placed.rev)
    ) ordered
)
