-- All attempts to deliver a message, in their order.
select *
from tenure_deliveries
where sequence = :sequence
order by number
