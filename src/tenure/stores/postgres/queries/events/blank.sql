-- Blanks the detail of old progress events that a later progress or claim replaces. It reads up to `limit` events after
-- those of the previous batch. Returns how many were blanked, and the last that was read; none: there are no more.
with examined as materialized (
    select event.at, event.job_id, event.rev
    from tenure.events event
    where event.type = 'progress'
      and event.detail is not null
      and event.at <= :before::timestamptz
      and (event.at, event.job_id, event.rev) > (:after_at::timestamptz, :after_job_id::uuid, :after_rev::integer)
    order by event.at, event.job_id, event.rev
    limit :limit
),
blanked as (
    update tenure.events event
    set detail = null
    from examined
    where event.job_id = examined.job_id and event.rev = examined.rev
      and exists (
        select from tenure.events later
        where later.job_id = event.job_id and later.rev > event.rev and later.type in ('progress', 'claimed')
      )
    returning 1
)
select (select count(*) from blanked) as removed, (select count(*) from examined) as examined, last.at, last.job_id, last.rev
from (values (1)) always
left join lateral (
    select * from examined order by examined.at desc, examined.job_id desc, examined.rev desc limit 1
) last on true
