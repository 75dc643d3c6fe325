-- Ends the lease of a cursor of the log. Guard: it is this token's. No row: it is not, and nothing changes.
update tenure_log_cursors
set owner = null,
    token = null,
    lease_expires_at = null,
    updated_at = :now
where name = :name
    and token = :token
