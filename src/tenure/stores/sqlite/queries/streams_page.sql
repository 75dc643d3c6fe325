-- A page of streams, in the order of their aggregates, after the given one.
select aggregate, written, delivered, failures, due_at
from tenure_streams
where aggregate > :aggregate
order by aggregate
limit :limit
