-- Records a warning that an endpoint has failed for so long since then. Guard: it still fails since then, is not disabled, and
-- the last warning is as long ago. No row: one of these does not hold.
update tenure_endpoints
set warned_at = :now
where name = :name
    and disabled_at is null
    and failing_since_at = :failing_since
    and max(failing_since_at, ifnull(warned_at, 0)) <= :before
