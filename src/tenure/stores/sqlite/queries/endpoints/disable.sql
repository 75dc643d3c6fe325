-- Disables an endpoint; with `failing_since`, only if it still fails since then. No row: it is disabled already, or unknown.
update tenure_endpoints
set disabled_at = :now, disabled_because = :because, updated_at = :now
where name = :name
    and disabled_at is null
    and (:failing_since is null or failing_since_at = :failing_since)
