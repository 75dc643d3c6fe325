-- A page of claims that won something, in the order of their ids, after the given one.
select request_id, body, job_ids, at
from tenure.claims
where request_id > :request_id
order by request_id
limit :limit
