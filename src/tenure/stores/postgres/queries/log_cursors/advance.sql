-- Advances a cursor of the log to a position.
-- Guard: this token's lease has not ended by the database's clock, and the cursor is where its owner left it.
-- No row: the lease is lost, or the cursor was moved.
update tenure.log_cursors cursor
set position = :position::text,
    updated_at = tenure.clock()
where cursor.name = :name::text
  and cursor.token = :token::uuid
  and cursor.lease_expires_at > tenure.clock()
  and cursor.position is not distinct from :after::text
returning cursor.name
