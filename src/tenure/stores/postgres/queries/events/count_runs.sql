-- How many positions a rebased log needs.
with
-- part: log_order
select coalesce(max(runs.number), 0)::bigint as runs
from runs
