-- Writes artifacts of one attempt. Returns the names that were written; one that is missing was used before.
with written as (
    insert into tenure.artifacts (job_id, name, attempt, media_type, bytes, at, body)
    select :job_id::uuid, given.name, :attempt::integer, given.media_type, octet_length(given.body), tenure.clock(),
        given.body
    from unnest(:names::text[], :media_types::text[], :bodies::bytea[]) as given(name, media_type, body)
    order by given.name collate "C"
    on conflict (job_id, name) do nothing
    returning name
)
select written.name
from set_config('tenure.writer', 'store', true) writer
left join written on true
