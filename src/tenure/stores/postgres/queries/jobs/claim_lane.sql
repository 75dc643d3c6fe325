-- Claims up to :limit due jobs of one lane, if the claimer has no other: the most frequent claim. It resumes from
-- the watermark, which is the bottom of the lane unless recent scans were long.
-- Guard: rows are locked, rows that other sessions have locked are skipped; only due, uncommitted jobs of the given
-- kinds. Where the queue has limits, another lane has jobs, or a job was lost while it ran, nothing is claimed, and
-- `declined` is true: that is for `claim.sql`. Everything else is as it is there.
with previous as materialized (
    select before.body, before.job_ids from tenure.won_before(:request_id, :wait_ms) before
),
lanes as (select :queue::text as queue, :priority::smallint as priority),
-- part: begun
    where not exists (select from previous)
      and not exists (select from tenure.queues queue where queue.name = :queue and tenure.has_limits(queue))
      and not exists (
          select from tenure.jobs job
          where job.queue = :queue and job.priority < :priority::smallint
            and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null and job.pinned_version is null
      )
      and not exists (
          select from tenure.jobs job
          where job.queue = :queue and job.priority > :priority::smallint
            and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null and job.pinned_version is null
      )
),
locked as materialized (
    select mine.*
    from clock,
        lateral (
            select job.id, job.losses
            from tenure.jobs job
            where job.queue = :queue
              and job.priority = :priority::smallint
              -- part: due
              and (job.due_at, job.id) > (:watermark_due_at::timestamptz, :watermark_id::uuid)
            order by job.due_at, job.id
            limit :limit
            for no key update skip locked
        ) mine
),
taken as materialized (
    select locked.id, row_number() over () as place
    from locked
    where not exists (select from locked where locked.losses > 0)
),
declined as (
    select not exists (select from previous)
        and (not exists (select from clock) or exists (select from locked where locked.losses > 0)) as holds
),
-- part: claimed
