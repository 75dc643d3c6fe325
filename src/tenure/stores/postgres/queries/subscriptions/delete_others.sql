-- Removes the subscriptions of an endpoint to other topics than these.
delete from tenure.subscriptions
where endpoint = :endpoint::text
  and topic <> all (:topics::text[])
