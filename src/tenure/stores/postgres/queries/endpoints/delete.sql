-- Removes an endpoint and its subscriptions. No row: there is no such endpoint.
with deleted as (delete from tenure.endpoints where name = :name::text returning name),
noted as (
    insert into tenure.operator_log (actor, action, detail)
    select :actor::text, 'delete_endpoint', :detail::text from deleted
)
select name from deleted
