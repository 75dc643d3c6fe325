-- A page of jobs in the order of ids. Every filter that is given must match.
select job.*
from tenure.jobs job
where (:after::uuid is null or job.id > :after::uuid)
  and (:statuses::text[] is null or job.status = any (:statuses::text[]))
  and (:queues::text[] is null or job.queue = any (:queues::text[]))
  and (:kinds::text[] is null or job.kind = any (:kinds::text[]))
  and (:reasons::text[] is null or job.reason = any (:reasons::text[]))
  and (:dedupe_key::text is null or job.dedupe_key = :dedupe_key::text)
  and (:submitted_by::text is null or job.submitted_by = :submitted_by::text)
  and (:tags::jsonb is null or job.tags::jsonb @> :tags::jsonb)
  and (:created_from::timestamptz is null or job.created_at >= :created_from::timestamptz)
  and (:created_until::timestamptz is null or job.created_at < :created_until::timestamptz)
order by job.id
limit :limit
