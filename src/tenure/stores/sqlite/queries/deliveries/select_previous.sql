-- The last message of an aggregate before this one that was attempted for the endpoint. No row: none was.
select sequence
from tenure_deliveries
where endpoint = :endpoint and aggregate = :aggregate and sequence < :sequence
order by sequence desc
limit 1
