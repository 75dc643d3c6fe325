-- Whether the log has positions that this cluster has not reached.
select exists (select from tenure.events event where event.tx >= pg_snapshot_xmax(pg_current_snapshot())) as ahead
