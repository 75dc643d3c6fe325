-- All endpoints in the order of names; or the one of this name.
select *
from tenure_endpoints
where :name is null or name = :name
order by name
