-- The first transaction that has not begun: no position of this cluster is behind it.
select pg_snapshot_xmax(pg_current_snapshot()) as tx
