-- Removes the subscriptions of an endpoint to other topics than these.
delete from tenure_subscriptions
where endpoint = :endpoint
    and topic not in (select value from json_each(:topics))
