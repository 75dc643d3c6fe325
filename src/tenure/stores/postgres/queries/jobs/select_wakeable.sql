-- Those of the given jobs that wait for no further child, in the order of ids. It reads live children, not ended ones.
with clock as materialized (select tenure.clock() as now)
select job.*
from tenure.jobs job, clock
where job.id = any (:ids::uuid[])
      -- part: children_ended
order by job.id
