-- Sends a signal to a suspended run in one statement, whatever its revision: the most frequent signal.
-- Returns the row as it was, and the time. Notifies the channel :notify of the queue, if it is given.
-- Guard: the job waits, is not committed, does not undo its steps, has no time limit for waiting to be claimed,
-- takes one more signal, and no event has the request id. A row that was changed since the statement began is
-- another one than was read: nothing is written. A row of nulls: the signal was not sent, and is decided on the row
-- as it is, by `apply.sql`.
with locked as materialized (
    select job.*
    from tenure.jobs job
    where job.id = :id::uuid
    for no key update skip locked
),
accepted as materialized (
    select locked.id, locked.rev, locked.attempt, greatest(tenure.clock(), locked.updated_at) as at
    from locked
    join tenure.jobs seen on seen.id = locked.id and seen.rev = locked.rev
    where locked.status = 'waiting'
      and locked.committed_at is null
      and locked.ends_as is null
      and exists (
          select
          from tenure.policies policy
          where policy.id = locked.policy_id
            and policy.queued_ms is null
            and coalesce((policy.body::jsonb ->> 'signals_max')::bigint, :signals_max::bigint)
                > (select count(*) from tenure.signals signal where signal.job_id = locked.id)
      )
      and not exists (
          select from tenure.events event where event.job_id = locked.id and event.request_id = :request_id::text
      )
),
logged as (
    insert into tenure.events (job_id, at, rev, attempt, version, commits, type, from_status, to_status, actor, request_id,
        digest, detail)
    select accepted.id, accepted.at, accepted.rev + 1, accepted.attempt, :version::smallint, false, 'signalled', 'waiting',
        'waiting', :actor::text, :request_id::text, :digest::text, :detail::text
    from accepted
),
sent as (
    insert into tenure.signals (job_id, rev, name, payload, at)
    select accepted.id, accepted.rev + 1, :name::text, :payload::text, accepted.at
    from accepted
),
moved as (
    update tenure.jobs job
    set previous_status = 'waiting',
        rev = job.rev + 1,
        transition_count = 1,
        updated_at = accepted.at,
        signal_rev = job.rev + 1,
        due_at = least(job.due_at, accepted.at)
    from accepted
    where job.id = accepted.id
)
select locked.*, accepted.at,
    case when :notify::text is not null and accepted.id is not null then pg_notify(:notify::text, locked.queue) end
from set_config('tenure.writer', 'store', true) writer
left join (accepted join locked on locked.id = accepted.id) on true
