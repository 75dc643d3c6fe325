-- Records that a processor serves these endpoints.
with locked as materialized (
    select name from tenure.endpoints where name = any (:names::text[]) order by name for no key update skip locked
)
update tenure.endpoints endpoint set seen_at = tenure.clock() from locked where endpoint.name = locked.name
