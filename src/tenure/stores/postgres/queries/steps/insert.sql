-- Saves a batch of steps, each under the lease of its job. No key of a job occurs twice in it.
-- Guard: the job is running and not committed, has the given token, and its lease runs by the database's clock, read
-- once the locks are held. The lock prevents that an actor that ends the attempt counts the steps meanwhile; rows
-- that such an actor has locked are skipped. A lease's renewal and the saving of a step do not wait for each other.
-- A returned step was written, or its row is `locked`. One that is not returned was refused, or its key was recorded
-- before.
with step as materialized (
    select *
    from unnest(:ids::uuid[], :tokens::uuid[], :keys::text[], :kinds::text[], :names::text[], :branches::text[],
                :ordinals::integer[], :attempts::integer[], :argument_digests::text[], :statuses::text[],
                :code_versions::text[], :durations_ms::bigint[], :child_ids::uuid[], :signal_revs::integer[],
                :content_digests::text[], :digests::text[], :spends::text[], :undos::text[], :results::text[],
                :errors::text[])
        with ordinality as step(job_id, token, key, kind, name, branch, ordinal, attempt, arguments_digest, status,
            code_version, duration_ms, child_id, signal_rev, content_digest, digest, spend, undo, result, error, place)
),
locked as materialized (
    select job.id, job.token, job.status, job.attempt, job.updated_at, job.lease_expires_at, job.committed_at
    from tenure.jobs job
    where job.id = any (:ids::uuid[])
    order by job.id
    for key share skip locked
),
clock as materialized (
    select tenure.clock() as now
    from (select count(*) from locked) everything_is_locked
),
written as (
    insert into tenure.steps (job_id, key, kind, name, branch, ordinal, attempt, arguments_digest, status, code_version,
        started_at, finished_at, child_id, signal_rev, content_digest, digest, spend, undo, result, error)
    select step.job_id, step.key, step.kind, step.name, step.branch, step.ordinal, step.attempt, step.arguments_digest,
        step.status, step.code_version, finished.at - step.duration_ms * interval '1 millisecond', finished.at,
        step.child_id, step.signal_rev, step.content_digest, step.digest::numeric, step.spend, step.undo, step.result,
        step.error
    from step
    join locked on locked.id = step.job_id
    cross join clock
    cross join lateral (select greatest(clock.now, locked.updated_at) as at) finished
    where locked.token = step.token
      and locked.attempt = step.attempt
      and locked.status = 'running'
      and locked.committed_at is null
      and locked.lease_expires_at > finished.at
    order by step.job_id, step.place
    on conflict (job_id, key) do nothing
    returning job_id, key, number, finished_at
)
select written.job_id, written.key, written.number, written.finished_at, false as locked
from set_config('tenure.writer', 'store', true) writer
left join written on true
union all
select step.job_id, step.key, null, null, true
from step
join tenure.jobs job on job.id = step.job_id
where not exists (select from locked where locked.id = step.job_id)
