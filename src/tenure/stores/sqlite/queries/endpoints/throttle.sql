-- Claims nothing for an endpoint for a time. A later end stays.
update tenure_endpoints
set throttled_until_at = max(ifnull(throttled_until_at, :until_at), :until_at)
where name = :name
