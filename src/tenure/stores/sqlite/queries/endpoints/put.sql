-- Creates or replaces an endpoint. A disabled one stays disabled. No row: it has this configuration already.
insert into tenure_endpoints (name, kind, config, source, created_at, updated_at)
values (:name, :kind, :config, :source, :now, :now)
on conflict (name) do update
set kind = excluded.kind, config = excluded.config, source = excluded.source, updated_at = excluded.updated_at
where (kind, config, source) is not (excluded.kind, excluded.config, excluded.source)
