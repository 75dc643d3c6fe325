-- The schedules that are due next, and the clock. One row without a name if there are none.
select clock.now, soonest.*
from (select tenure.clock() as now) clock
left join lateral (
    select schedule.*
    from tenure.schedules schedule
    where schedule.next_at is not null
      and schedule.paused_at is null
      and (schedule.next_at, schedule.name) > (:after_at::timestamptz, :after_name::text)
    order by schedule.next_at, schedule.name
    limit :limit::integer
) soonest on true
order by soonest.next_at, soonest.name
