-- Creates or replaces an endpoint, and records it if it changes. A disabled one stays disabled.
with put as (
    insert into tenure.endpoints as endpoint (name, kind, config, source, created_at, updated_at)
    values (:name::text, :kind::text, :config::text, :source::text, tenure.clock(), tenure.clock())
    on conflict (name) do update
    set kind = excluded.kind, config = excluded.config, source = excluded.source, updated_at = excluded.updated_at
    where (endpoint.kind, endpoint.config, endpoint.source) is distinct from (excluded.kind, excluded.config, excluded.source)
    returning name
)
insert into tenure.operator_log (actor, action, detail)
select :actor::text, 'put_endpoint', :detail::text from put
