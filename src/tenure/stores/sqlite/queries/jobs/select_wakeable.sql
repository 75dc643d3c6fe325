-- Those of the given jobs that wait for no further child, in the order of ids. It reads live children, not ended ones.
select
    -- each job column: job.{}
from tenure_jobs job
where job.id in (select value from json_each(:ids))
    -- part: children_ended
order by job.id
