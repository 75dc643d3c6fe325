-- Leases a cursor of the log, creating it where it is new, or renews the lease of this token.
-- Guard: no other owner has a lease that has not ended. No row: one has.
insert into tenure_log_cursors (name, owner, token, lease_expires_at, updated_at)
values (:name, :owner, :token, :until_at, :now)
on conflict (name) do update
set owner = excluded.owner,
    token = excluded.token,
    lease_expires_at = excluded.lease_expires_at,
    updated_at = excluded.updated_at
where token is null or token = excluded.token or lease_expires_at <= :now
returning position
