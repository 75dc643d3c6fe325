-- The number of a policy, inserted when it is new. No row: another transaction is inserting it; try again.
with made as (
    insert into tenure.policies (body, lease_ms, heartbeat_ms, queued_ms, claimed_ms, running_ms, deadline_ms)
    values (:body, :lease_ms, :heartbeat_ms, :queued_ms, :claimed_ms, :running_ms, :deadline_ms)
    on conflict (body) do nothing
    returning id
)
select made.id
from set_config('tenure.writer', 'store', true) writer
join made on true
union all
select policy.id from tenure.policies policy where policy.body = :body
limit 1
