-- Disables an endpoint. No row: it is disabled already, or unknown.
update tenure_endpoints
set disabled_at = :now, disabled_because = :because, updated_at = :now
where name = :name and disabled_at is null
