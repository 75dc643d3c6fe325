-- Writes a batch of decided changes: for each, its events and its row.
-- Guard: the row still has the revision that was decided upon, the token of the lease where the change is its
-- owner's, and the database's clock, read once every lock is held, allows it. Locks are taken in the order of ids.
-- Rows that another transaction has locked are skipped, so that one of them does not delay the others. The jobs of
-- `counted`, whose attempts another actor ends, are locked against saving steps, and their events carry the digest
-- of the steps.
-- A returned change was written, or its row is `locked`; one that is not returned met another row than it was
-- decided upon.
with change as materialized (
    select *
    from unnest(:ids::uuid[], :revs::integer[], :tokens::uuid[], :guards::text[], :transition_counts::smallint[],
                -- each changing column: :{}::{type}[]
            , :deadlines::timestamptz[]
        ) as change(id, rev, token, guard, transition_count,
            -- each changing column: new_{}
            , deadline_at
        )
),
usual as materialized (
    select job.id, job.rev, job.token, job.updated_at, job.due_at, job.lease_expires_at, job.heartbeat_deadline_at,
        job.timeout_at, job.owner, job.correlation_id
    from tenure.jobs job
    where job.id = any (:ids::uuid[]) and job.id <> all (:counted::uuid[])
    order by job.id
    for no key update skip locked
),
ended as materialized (
    select job.id, job.rev, job.token, job.updated_at, job.due_at, job.lease_expires_at, job.heartbeat_deadline_at,
        job.timeout_at, job.owner, job.correlation_id
    from tenure.jobs job
    where job.id = any (:counted::uuid[])
    order by job.id
    for update skip locked
),
locked as materialized (
    select * from usual
    union all
    select * from ended
),
clock as materialized (
    select tenure.clock() as now
    from (select count(*) from locked) everything_is_locked
),
accepted as materialized (
    select change.*, written.at, locked.owner as last_owner,
        locked.lease_expires_at as last_lease_expires_at, locked.correlation_id,
        -- Only a heartbeat moves the end of the lease, and only once half of the lease has passed.
        coalesce(change.new_lease_expires_at > 0, false) as renews,
        coalesce(change.new_lease_expires_at > 0
            and (locked.lease_expires_at - written.at) * 2 > change.new_lease_expires_at * interval '1 microsecond', false)
            as lease_stays
    from change
    join locked on locked.id = change.id
    cross join clock
    cross join lateral (select greatest(clock.now, locked.updated_at) as at) written
    where locked.rev = change.rev
      and (change.token is null or locked.token = change.token)
      and case change.guard
            when 'live_lease' then locked.lease_expires_at > written.at
            when 'due' then locked.due_at <= written.at
            when 'orphaned' then locked.lease_expires_at <= written.at or locked.heartbeat_deadline_at <= written.at
            when 'overdue' then locked.timeout_at <= written.at
            else true
          end
),
logged as (
    insert into tenure.events (tx, job_id, at, until_at, rev, attempt, version, commits, type, from_status, to_status,
        actor, request_id, cause, digest, detail, steps)
    select case when :in_block::boolean then tenure.place_after(accepted.id, accepted.rev) else pg_current_xact_id() end,
        accepted.id, accepted.at,
        case when not accepted.lease_stays then accepted.at + step.until_after_ms * interval '1 millisecond' end, step.rev,
        step.attempt, :version::smallint, step.commits, step.type, step.from_status, step.to_status, step.actor,
        step.request_id, step.cause, step.digest, step.detail,
        case when step.counts then tenure.steps_digest(accepted.id) else step.steps end
    from unnest(:step_ids::uuid[], :step_revs::integer[], :step_attempts::integer[], :step_types::text[],
                :step_froms::text[], :step_tos::text[], :step_untils::bigint[], :step_commits::boolean[],
                :step_actors::text[], :step_requests::text[], :step_causes::text[], :step_digests::text[],
                :step_details::text[], :step_steps::text[], :step_counts::boolean[])
        as step(id, rev, attempt, type, from_status, to_status, until_after_ms, commits, actor, request_id, cause,
            digest, detail, steps, counts)
    join accepted on accepted.id = step.id
),
buried as (
    insert into tenure.dead_letters (job_id, reason_code, stage, last_error, attempts, at, last_owner,
        last_lease_expires_at, correlation_id)
    select accepted.id, accepted.new_reason, letter.stage, accepted.new_last_error, accepted.new_attempt, accepted.at,
        coalesce(accepted.last_owner, last.owner), coalesce(accepted.last_lease_expires_at, last.until_at),
        coalesce(accepted.correlation_id, accepted.id::text)
    from unnest(:letter_ids::uuid[], :letter_stages::text[]) letter(id, stage)
    join accepted on accepted.id = letter.id
    left join lateral (
        select substr(event.actor, strpos(event.actor, ':') + 1) as owner, coalesce(renewal.until_at, event.until_at) as until_at
        from tenure.events event
        left join lateral (
            select renewal.until_at
            from tenure.events renewal
            where renewal.job_id = event.job_id and renewal.rev > event.rev and renewal.type = 'heartbeat'
              and renewal.until_at is not null
            order by renewal.rev desc
            limit 1
        ) renewal on true
        where event.job_id = accepted.id and event.type = 'claimed'
        order by event.rev desc
        limit 1
    ) last on true
),
inserted as (
    insert into tenure.signals (job_id, rev, name, payload, at)
    select accepted.id, signal.rev, signal.name, signal.payload, accepted.at
    from unnest(:signal_ids::uuid[], :signal_revs::integer[], :signal_names::text[], :signal_payloads::text[])
        signal(id, rev, name, payload)
    join accepted on accepted.id = signal.id
),
moved as (
    update tenure.jobs job
    set previous_status = job.status,
        rev = job.rev + accepted.transition_count,
        transition_count = accepted.transition_count,
        updated_at = accepted.at,
        token = case when accepted.new_owner is null then null else job.token end,
        lease_expires_at = case when accepted.lease_stays then job.lease_expires_at
            else tenure.time_at(accepted.new_lease_expires_at, job.lease_expires_at, accepted.at) end,
        timeout_at = least(tenure.time_at(accepted.new_timeout_at, job.timeout_at, accepted.at), accepted.deadline_at),
        -- each time column: {} = tenure.time_at(accepted.new_{}, job.{}, accepted.at)
        ,
        -- each plain column: {} = accepted.new_{}
    from accepted
    where job.id = accepted.id
    returning job.id, job.updated_at, accepted.renews and not accepted.lease_stays as renewed
)
select moved.id, moved.updated_at, moved.renewed, false as locked
from set_config('tenure.writer', 'store', true) writer
left join moved on true
union all
select change.id, null, false, true
from change
join tenure.jobs job on job.id = change.id
where not exists (select from locked where locked.id = change.id)
