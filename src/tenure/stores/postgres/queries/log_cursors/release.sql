-- Ends the lease of a cursor of the log. Guard: it is this token's. No row: it is not, and nothing changes.
update tenure.log_cursors cursor
set owner = null,
    token = null,
    lease_expires_at = null,
    updated_at = tenure.clock()
where cursor.name = :name::text
  and cursor.token = :token::uuid
returning cursor.name
