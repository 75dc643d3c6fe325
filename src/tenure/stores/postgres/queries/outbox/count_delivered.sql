-- How many messages were last delivered up to a time, are pending and dead for no endpoint, and belong to no job that is
-- kept.
select count(*)
from tenure.outbox message
where exists (
    select from tenure.deliveries delivery
    where delivery.sequence = message.sequence and delivery.outcome = 'delivered' and delivery.at <= :before::timestamptz
)
  and
  -- part: unneeded
