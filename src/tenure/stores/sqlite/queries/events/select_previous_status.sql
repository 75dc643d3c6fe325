-- The status before the last transition of an imported job. Null at revision 1.
select from_status
from tenure_events
where job_id = :job_id
    and rev = :rev
union all
select null
limit 1
