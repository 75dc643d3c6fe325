-- Disables an endpoint; with `failing_since`, only if it still fails since then. No row: it is disabled already, or unknown.
with disabled as (
    update tenure.endpoints
    set disabled_at = tenure.clock(), disabled_because = :because::text, updated_at = tenure.clock()
    where name = :name::text
      and disabled_at is null
      and (:failing_since::timestamptz is null or failing_since_at = :failing_since::timestamptz)
    returning name
),
noted as (
    insert into tenure.operator_log (actor, action, detail)
    select :actor::text, 'disable_endpoint', :detail::text from disabled
)
select name from disabled
