-- Gives every event a new position, above all that readers of this cluster have seen.
-- Guard: the table is locked, and its trigger is disabled by the owner.
with
-- part: log_order
update tenure.events event
set tx = (:reached::bigint + runs.number)::bigint::text::xid8
from runs
where event.job_id = runs.job_id
  and event.rev = runs.rev
