-- Enables an endpoint, which begins as one that does not fail. No row: it is not disabled, or unknown.
update tenure_endpoints
set disabled_at = null, disabled_because = null, failing_since_at = null, warned_at = null, throttled_until_at = null, updated_at = :now
where name = :name and disabled_at is not null
