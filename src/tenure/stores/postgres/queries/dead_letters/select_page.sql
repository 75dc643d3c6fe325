-- A page of dead letters in the order of their jobs' ids. Every filter that is given must match.
select letter.*
from tenure.dead_letters letter
join tenure.jobs job on job.id = letter.job_id
where (:after::uuid is null or letter.job_id > :after::uuid)
  and (:handled::boolean or letter.handled_at is null)
  and (:reason_codes::text[] is null or letter.reason_code = any (:reason_codes::text[]))
  and (:stages::text[] is null or letter.stage = any (:stages::text[]))
  and (:kinds::text[] is null or job.kind = any (:kinds::text[]))
  and (:queues::text[] is null or job.queue = any (:queues::text[]))
  and (:correlation_id::text is null or letter.correlation_id = :correlation_id::text)
  and (:dead_from::timestamptz is null or letter.at >= :dead_from::timestamptz)
  and (:dead_until::timestamptz is null or letter.at < :dead_until::timestamptz)
order by letter.job_id
limit :limit
