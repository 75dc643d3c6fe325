-- Takes up to :limit due jobs of one lane, where it is all that there is to claim from: the commonest claim, with nothing
-- more than it needs.
-- Guard: rows are locked, others' locks are passed over; only due, uncommitted jobs of the given kinds.
-- Where the queue has rules, another lane has something to claim, or a job was lost while it ran, nothing is taken, and
-- `intricate` says so: that is for `claim.sql`. Everything else is as it is there.
with previous as materialized (
    select claim.body, claim.job_ids
    from tenure.claims claim
    where claim.request_id = :request_id
),
moment as materialized (
    select tenure.clock() as now, pg_stat_get_xact_tuples_returned('tenure.jobs_ready'::regclass) as walked
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
              and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null
              and job.due_at <= moment.now
              and job.kind = any (:kinds::text[])
              and job.committed_at is null
              and job.id <> all (:excluded::uuid[])
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
select previous.body as won_body, previous.job_ids as won,
    previous.body is null and (moment.now is null or exists (select from locked where locked.losses > 0)) as intricate,
    moved.id, moved.kind, moved.queue, moved.priority, moved.payload, moved.policy_id, moved.dedupe_key,
    moved.request_id, moved.correlation_id, moved.trace, moved.submitted_by, moved.tags, moved.partition_key, moved.parent_id, moved.redrive_of, moved.created_at,
    moved.updated_at, moved.rev, moved.attempt, moved.failures, moved.losses, moved.due_at, moved.cancel_requested,
    moved.last_error, case when :chain::smallint = 1 then moved.started_at end as started_before,
    pg_stat_get_xact_tuples_returned('tenure.jobs_ready'::regclass) - moment.walked as walked,
    case when moved.id is null then moment.now end as looked_at,
    case when moved.id is null then array[:queue::text] end as lane_queues,
    case when moved.id is null then array[:priority::smallint] end as lane_priorities
from set_config('tenure.writer', 'store', true) writer
left join previous on true
left join moment on true
left join moved on true
