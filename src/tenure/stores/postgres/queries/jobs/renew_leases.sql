-- Heartbeats of a batch of jobs: each lease is renewed once half of its time has passed.
-- Guard: revision, token, and a lease that runs by the database's clock. Rows that another transaction has locked
-- are skipped, so that one of them does not delay the others.
-- A returned row was renewed, or is `locked`; one that is not returned is no longer the one decided upon.
with renewal as materialized (
    select *
    from unnest(:ids::uuid[], :revs::integer[], :tokens::uuid[], :actors::text[], :requests::text[], :lease_ms::bigint[],
                :heartbeat_ms::bigint[])
        as renewal(id, rev, token, actor, request_id, lease_ms, heartbeat_ms)
),
locked as materialized (
    select job.id, job.rev, job.token, job.status, job.attempt, job.updated_at, job.lease_expires_at
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
    select renewal.*, locked.status, locked.attempt, written.at,
        case when (locked.lease_expires_at - written.at) * 2 <= renewal.lease_ms * interval '1 millisecond'
            then written.at + renewal.lease_ms * interval '1 millisecond'
        end as until_at
    from renewal
    join locked on locked.id = renewal.id
    cross join clock
    cross join lateral (select greatest(clock.now, locked.updated_at) as at) written
    where locked.rev = renewal.rev
      and locked.token = renewal.token
      and locked.lease_expires_at > written.at
),
logged as (
    insert into tenure.events (job_id, at, until_at, rev, attempt, version, commits, type, from_status, to_status,
        actor, request_id)
    select accepted.id, accepted.at, accepted.until_at, accepted.rev + 1, accepted.attempt, :version::smallint, false,
        'heartbeat', accepted.status, accepted.status, accepted.actor, accepted.request_id
    from accepted
),
moved as (
    update tenure.jobs job
    set previous_status = job.status,
        rev = job.rev + 1,
        transition_count = 1,
        updated_at = accepted.at,
        heartbeat_deadline_at = accepted.at + accepted.heartbeat_ms * interval '2 milliseconds',
        lease_expires_at = coalesce(accepted.until_at, job.lease_expires_at)
    from accepted
    where job.id = accepted.id
    returning job.id, job.updated_at, accepted.until_at is not null as renewed
)
select moved.id, moved.updated_at, moved.renewed, false as locked
from set_config('tenure.writer', 'store', true) writer
left join moved on true
union all
select renewal.id, null, false, true
from renewal
join tenure.jobs job on job.id = renewal.id
where not exists (select from locked where locked.id = renewal.id)
