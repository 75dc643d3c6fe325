-- Advances a cursor of the log to a position.
-- Guard: this token's lease has not ended, and the cursor is where its owner left it.
-- No row: the lease is lost, or the cursor was moved.
update tenure_log_cursors
set position = :position,
    updated_at = :now
where name = :name
    and token = :token
    and lease_expires_at > :now
    and position is :after
