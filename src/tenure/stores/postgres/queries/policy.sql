-- The number of a policy, written when it is new. No row: somebody is writing it at this moment; ask again.
with made as (
    insert into tenure.policies (body, lease_ms, heartbeat_ms, queued_ms, claimed_ms, running_ms)
    values (:body, :lease_ms, :heartbeat_ms, :queued_ms, :claimed_ms, :running_ms)
    on conflict (body) do nothing
    returning id
)
select id from made
union all
select id from tenure.policies where body = :body
limit 1
