-- Advances a schedule and adds the jobs of its due times, all or nothing.
-- Guard: its revision, that it is not paused, and a clock that has reached the last of these due times. A statement
-- that waits for another's firing finds another revision. No row means that the guard did not hold, and that nothing
-- was added; one row without a job, that there was none to add. The ids of the jobs come from the updated row, so
-- that none is added without it.
with moved as (
    update tenure.schedules schedule
    set rev = schedule.rev + 1, last_at = :until::timestamptz, next_at = :next_at::timestamptz
    where schedule.name = :name::text
      and schedule.rev = :rev::integer
      and schedule.paused_at is null
      and schedule.next_at <= :until::timestamptz
      and tenure.clock() >= :until::timestamptz
    returning schedule.rev
)
select answer.ordinal, answer.job_id, answer.created, answer.created_at
from moved
left join lateral tenure.enqueue_jobs(case when moved.rev > 0 then :ids::uuid[] end, :kinds::text[], :queues::text[],
    :priorities::smallint[], :payloads::text[], :policies::integer[], :dedupe_keys::text[], :request_ids::text[],
    :correlation_ids::text[], :traces::text[], :submitters::text[], :tags::text[], :partition_keys::text[],
    :parents::uuid[], :redrives::uuid[], :awaited::boolean[], :delays_ms::bigint[], :due_ats::timestamptz[], :digests::text[],
    :details::text[], :causes::text[], :actors::text[], :version::smallint) answer on true
order by answer.ordinal
