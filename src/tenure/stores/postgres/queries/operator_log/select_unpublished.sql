-- Records of the operator log that are not published, the oldest first.
select id, at, actor, action, job_id, detail
from tenure.operator_log
where published_at is null
order by id
limit :limit
