-- All attempts to deliver a message, in their order.
select *
from tenure.deliveries
where sequence = :sequence::bigint
order by number
