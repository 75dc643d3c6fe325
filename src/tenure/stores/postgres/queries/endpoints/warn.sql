-- Records a warning that an endpoint has failed for so long since then. Guard: it still fails since then, is not disabled, and
-- the last warning is as long ago. No row: one of these does not hold.
with warned as (
    update tenure.endpoints
    set warned_at = tenure.clock()
    where name = :name::text
      and disabled_at is null
      and failing_since_at = :failing_since::timestamptz
      and greatest(failing_since_at, warned_at) <= tenure.clock() - :every_ms::bigint * interval '1 millisecond'
    returning name
),
noted as (
    insert into tenure.operator_log (actor, action, detail)
    select :actor::text, 'warn_endpoint', :detail::text from warned
)
select name from warned
