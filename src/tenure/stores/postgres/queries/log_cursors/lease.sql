-- Leases a cursor of the log, creating it where it is new, or renews the lease of this token.
-- Guard: no other owner has a lease that has not ended by the database's clock. No row: one has.
insert into tenure.log_cursors as cursor (name, owner, token, lease_expires_at, updated_at)
values (:name::text, :owner::text, :token::uuid, tenure.clock() + :lease_ms::bigint * interval '1 millisecond', tenure.clock())
on conflict (name) do update
set owner = excluded.owner,
    token = excluded.token,
    lease_expires_at = excluded.lease_expires_at,
    updated_at = excluded.updated_at
where cursor.token is null or cursor.token = excluded.token or cursor.lease_expires_at <= tenure.clock()
returning cursor.position
