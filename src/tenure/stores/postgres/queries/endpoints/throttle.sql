-- Claims nothing for an endpoint for a time. A later end stays.
update tenure.endpoints
set throttled_until_at = greatest(throttled_until_at, tenure.clock() + :pause_ms::bigint * interval '1 millisecond')
where name = :name::text
