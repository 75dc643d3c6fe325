-- Takes up to :limit due jobs of one lane, where it is all that there is to claim from: the commonest claim, with nothing
-- more than it needs.
-- It reads on from the floor, which is the bottom of the lane unless claims had to walk far of late.
-- Guard: rows are locked, others' locks are passed over; only due, uncommitted jobs of the given kinds.
-- Where the queue has rules, another lane has something to claim, or a job was lost while it ran, nothing is taken, and
-- `intricate` says so: that is for `claim.sql`. Everything else is as it is there.
with previous as materialized (
    select before.body, before.job_ids from tenure.won_before(:request_id) before
),
moment as materialized (
    select tenure.clock() as now, pg_stat_get_xact_tuples_returned('tenure.jobs_ready'::regclass) as walked,
        pg_stat_get_xact_blocks_fetched('tenure.jobs_ready'::regclass) as turned
    where not exists (select from previous)
      and not exists (select from tenure.queues queue where queue.name = :queue and tenure.has_rules(queue))
      and not exists (
          select from tenure.jobs job
          where job.queue = :queue and job.priority < :priority::smallint
            and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null
      )
      and not exists (
          select from tenure.jobs job
          where job.queue = :queue and job.priority > :priority::smallint
            and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null
      )
),
locked as materialized (
    select mine.*
    from moment,
        lateral (
            select job.id, job.losses
            from tenure.jobs job
            where job.queue = :queue
              and job.priority = :priority::smallint
              -- part: due
              and (job.due_at, job.id) > (:floor_due::timestamptz, :floor_id::uuid)
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
-- part: claimed
    previous.body is null and (moment.now is null or exists (select from locked where locked.losses > 0)) as intricate,
    case when moved.id is null then array[:queue::text] end as lane_queues,
    case when moved.id is null then array[:priority::smallint] end as lane_priorities
from set_config('tenure.writer', 'store', true) writer
left join previous on true
left join moment on true
left join moved on true
