-- The schedules that are due next, after a given time and name.
select *
from tenure_schedules
where next_at is not null
    and paused_at is null
    and (next_at, name) > (:after_at, :after_name)
order by next_at, name
limit :limit
