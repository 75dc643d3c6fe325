-- Verbose events up to a time whose detail is superseded by a later event of the job.
select event.position
from tenure_events event indexed by tenure_events_type
where event.type in ('heartbeat', 'progress')
    and event.at <= :before
    and event.detail is not null
    and exists (
        select 1
        from tenure_events later
        where later.job_id = event.job_id
            and later.rev > event.rev
            and later.type in ('progress', 'claimed')
    )
order by event.position
limit :limit
