-- What a claim writes for the jobs that it has `taken`: their rows, an event each (a claim, or a claim and its start), and
-- the record for a repeated request. It returns the jobs in no order, which costs less than sorting all of their columns,
-- and at last one row without id: the statistics of the claim. Rows are found by a list of ids: how many a join would
-- find is unknown when it is planned.
moved as (
    update tenure.jobs job
    set status = case :transition_count::smallint when 2 then 'running' else 'claimed' end,
        previous_status = job.status,
        rev = job.rev + :transition_count::smallint,
        transition_count = :transition_count::smallint,
        attempt = job.attempt + 1,
        lost = false,
        updated_at = greatest(clock.now, job.updated_at),
        owner = :worker::text,
        token = :token::uuid,
        lease_expires_at = greatest(clock.now, job.updated_at) + policy.lease_ms * interval '1 millisecond',
        heartbeat_deadline_at = greatest(clock.now, job.updated_at) + policy.heartbeat_ms * interval '2 milliseconds',
        timeout_at = greatest(clock.now, job.updated_at)
            + case :transition_count::smallint when 2 then policy.running_ms else policy.claimed_ms end * interval '1 millisecond',
        started_at = case :transition_count::smallint when 2 then greatest(clock.now, job.updated_at) else job.started_at end,
        waiting_for = null,
        children_max = null,
        progress = null,
        progress_message = null
    from tenure.policies policy, clock
    where job.id = any (array(select taken.id from taken)) and policy.id = job.policy_id
    returning
        -- each claimed column: job.{}
        , case when :transition_count::smallint = 1 then job.started_at end as started_before,
        job.lease_expires_at, job.previous_status
),
logged as (
    insert into tenure.events (job_id, tx, at, until_at, rev, attempt, version, commits, type, from_status, to_status,
        actor, request_id, detail)
    select moved.id,
        -- What was committed since this transaction has its number comes before: within limits another statement came first,
        -- and without them a job may have changed between being seen and being locked, but not have begun.
        case when :within_limits::boolean or moved.rev - :transition_count::smallint > 1
            then tenure.place_after(moved.id, moved.rev - :transition_count::smallint)
            else pg_current_xact_id()
        end,
        moved.updated_at, moved.lease_expires_at, moved.rev, moved.attempt, :version::smallint, false, 'claimed',
        moved.previous_status, case :transition_count::smallint when 2 then 'running' else 'claimed' end, :actor::text, :request_id,
        :detail::text
    from moved
),
recorded as (
    insert into tenure.claims (request_id, body, at, job_ids)
    select :request_id, :body::text, min(clock.now), array_agg(taken.id order by taken.place)
    from taken
    cross join clock
    having count(*) > 0
)
select moved.*,
    null::text as won_body, null::uuid[] as won_job_ids, null::boolean as declined, null::bigint as entries_read,
    null::bigint as pages_read, null::timestamptz as read_until, null::text[] as lane_queues,
    null::smallint[] as lane_priorities
from moved
union all
select
    -- each claimed column: null
    , null, null, null,
    previous.body, previous.job_ids, declined.holds,
    pg_stat_get_xact_tuples_returned('tenure.jobs_ready'::regclass) - clock.entries_read,
    pg_stat_get_xact_blocks_fetched('tenure.jobs_ready'::regclass) - clock.pages_read,
    clock.now,
    case when not exists (select from taken) then array(select lanes.queue from lanes) end,
    case when not exists (select from taken) then array(select lanes.priority from lanes) end
from set_config('tenure.writer', 'store', true) writer
cross join declined
left join previous on true
left join clock on true
