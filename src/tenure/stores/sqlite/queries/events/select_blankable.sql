-- Progress events up to a time that have a detail, after those of the previous batch, and whether a later event of the
-- job replaces the detail.
select event.at, event.position, exists (
    select 1
    from tenure_events later
    where later.job_id = event.job_id
        and later.rev > event.rev
        and later.type in ('progress', 'claimed')
)
from tenure_events event indexed by tenure_events_verbose
where event.type = 'progress'
    and event.detail is not null
    and event.at <= :before
    and (event.at, event.position) > (:after_at, :after_position)
order by event.at, event.position
limit :limit
