-- The last sequence number of an aggregate. No row: it has no message.
select written
from tenure_streams
where aggregate = :aggregate
