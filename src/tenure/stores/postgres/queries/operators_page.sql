-- A page of what operators did, in the order in which they did it, after the given entry.
select id, at, actor, action, job_id, detail
from tenure.operator_log
where id > :id
order by id
limit :limit
