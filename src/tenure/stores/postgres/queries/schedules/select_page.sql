-- Schedules in the order of names: the one of a name, or those after one.
select schedule.*
from tenure.schedules schedule
where (:name::text is null or schedule.name = :name::text)
  and schedule.name > :after::text
order by schedule.name
limit :limit::integer
