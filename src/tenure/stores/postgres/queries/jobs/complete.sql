-- Completes a batch of jobs that were not committed before: the most frequent change, in a statement of its own.
-- Guard: revision, token, and a lease that runs by the database's clock, read once every lock is held. Locks are
-- taken in the order of ids; rows that another transaction has locked are skipped. Values that all jobs share are
-- sent once. The steps of earlier attempts are counted without a further lock: no step can be added to an attempt
-- that has ended.
-- Returns the time if all were completed at it. Otherwise `ids` and `ats` list the completed jobs with their times,
-- and `locked_ids` the jobs whose rows are locked; a job in neither list met another row than it was decided upon.
with change as materialized (
    select change.id, change.rev, coalesce(change.token, (:tokens::uuid[])[1]) as token,
        coalesce(change.actor, (:actors::text[])[1]) as actor,
        coalesce(change.request_id, (:requests::text[])[1]) as request_id,
        coalesce(change.result, (:results::text[])[1]) as result,
        coalesce(change.digest, (:digests::text[])[1]) as digest
    from unnest(:ids::uuid[], :revs::integer[], :tokens::uuid[], :actors::text[], :requests::text[], :results::text[],
                :digests::text[])
        as change(id, rev, token, actor, request_id, result, digest)
),
locked as materialized (
    select job.id, job.rev, job.token, job.attempt, job.updated_at, job.lease_expires_at
    from tenure.jobs job
    where job.id = any (:ids::uuid[])
    order by job.id
    for no key update skip locked
),
clock as materialized (
    select tenure.clock() as now
    from (select count(*) from locked) everything_is_locked
),
accepted as materialized (
    select change.*, locked.attempt, greatest(clock.now, locked.updated_at) as at
    from change
    join locked on locked.id = change.id
    cross join clock
    where locked.rev = change.rev
      and locked.token = change.token
      and locked.lease_expires_at > greatest(clock.now, locked.updated_at)
),
logged as (
    insert into tenure.events (job_id, at, rev, attempt, version, commits, type, from_status, to_status, actor,
        request_id, digest, steps)
    select accepted.id, accepted.at, accepted.rev + 1, accepted.attempt, :version::smallint, true, 'succeeded',
        'running', 'succeeded', accepted.actor, accepted.request_id, accepted.digest,
        case when accepted.attempt > 1 then tenure.steps_digest(accepted.id) end
    from accepted
),
moved as (
    update tenure.jobs job
    set status = 'succeeded',
        previous_status = job.status,
        rev = job.rev + 1,
        transition_count = 1,
        updated_at = accepted.at,
        finished_at = accepted.at,
        committed_at = accepted.at,
        result = accepted.result,
        owner = null,
        token = null,
        lease_expires_at = null,
        heartbeat_deadline_at = null,
        timeout_at = null
    from accepted
    where job.id = accepted.id
    returning job.id, job.updated_at
)
select clock.now,
    case when count(moved.id) < cardinality(:ids::uuid[]) or max(moved.updated_at) > clock.now
        then array_agg(moved.id) end as ids,
    case when count(moved.id) < cardinality(:ids::uuid[]) or max(moved.updated_at) > clock.now
        then array_agg(moved.updated_at) end as ats,
    case when count(moved.id) < cardinality(:ids::uuid[]) then array(
        select job.id
        from tenure.jobs job
        where job.id = any (:ids::uuid[]) and not exists (select from locked where locked.id = job.id)
    ) end as locked_ids
from set_config('tenure.writer', 'store', true) writer
cross join clock
left join moved on true
group by clock.now
