-- Enqueues jobs. Races are settled in the function, which user connections call too.
select ordinal, job_id, created, created_at
from tenure.enqueue_jobs(:ids::uuid[], :kinds::text[], :queues::text[], :priorities::smallint[], :payloads::text[],
    :policies::integer[], :dedupe_keys::text[], :request_ids::text[], :correlation_ids::text[], :traces::text[],
    :submitters::text[], :tags::text[], :partition_keys::text[], :parents::uuid[], :redrives::uuid[],
    :awaited::boolean[], :delays_ms::bigint[], :due_ats::timestamptz[], :digests::text[], :details::text[], :causes::text[], :actors::text[],
    :version::smallint)
order by ordinal
