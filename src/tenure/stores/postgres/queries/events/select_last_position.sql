-- The first transaction that may still write, or has not begun: all before it are settled.
select pg_snapshot_xmin(pg_current_snapshot()) as tx
