-- Records that a processor serves these endpoints.
update tenure_endpoints
set seen_at = :now
where name in (select value from json_each(:names))
