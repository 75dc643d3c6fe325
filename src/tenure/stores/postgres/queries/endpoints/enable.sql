-- Enables an endpoint, which begins as one that does not fail. No row: it is not disabled, or unknown.
with enabled as (
    update tenure.endpoints
    set disabled_at = null, disabled_because = null, failing_since_at = null, warned_at = null, throttled_until_at = null,
        updated_at = tenure.clock()
    where name = :name::text and disabled_at is not null
    returning name
),
noted as (
    insert into tenure.operator_log (actor, action, detail)
    select :actor::text, 'enable_endpoint', :detail::text from enabled
)
select name from enabled
