-- How many messages an aggregate has had. No row: none yet.
select written
from tenure_streams
where aggregate = :aggregate
