-- Keeps artifacts of one attempt. Answers the names that were written; one that is missing was used before.
insert into tenure.artifacts (job_id, name, attempt, media_type, bytes, at, body)
select :job_id::uuid, given.name, :attempt::integer, given.media_type, octet_length(given.body), tenure.clock(),
    given.body
from unnest(:names::text[], :media_types::text[], :bodies::bytea[]) as given(name, media_type, body)
order by given.name collate "C"
on conflict (job_id, name) do nothing
returning name
