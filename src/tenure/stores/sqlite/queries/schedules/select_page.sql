-- Schedules in the order of names: the one of a name, or those after one.
select *
from tenure_schedules
where (:name is null or name = :name)
    and name > :after
order by name
limit :limit
