-- Takes up to :limit due jobs for a claimer of many queues, in the order of priority and then time since due, from those of
-- its lanes that are asked, and starts them when :chain is 2.
-- Guard: rows are locked, others' locks are passed over; only due, uncommitted jobs of the given kinds and queues.
-- Lanes that are known are given with the place from which to read on; others are looked for in the gaps that are given. What
-- is not asked has nothing before the ceiling, and nothing behind it is taken, but where others' locks are in the way.
-- Where one of the queues has rules, nothing is taken, and `ruled` says so: that is for a choice by these rules.
-- The first row says of each lane what it had first at the moment `at`, before anything was taken: a job to claim, or else
-- whatever is due next, or nothing. Everything else is as in `claim.sql`.
with recursive previous as materialized (
    select before.body, before.job_ids from tenure.won_before(:request_id) before
),
-- The names of all queues come as lines: mostly no queue has rules, and then they need not be taken apart.
ruled as materialized (
    select case
            when exists (select from tenure.queues queue where tenure.has_rules(queue)) then exists (
                select from tenure.queues queue
                where queue.name = any (string_to_array(:queue_lines::text, E'\n')) and tenure.has_rules(queue)
            )
            else false
        end as holds
),
moment as materialized (
    select tenure.clock() as now, pg_stat_get_xact_tuples_returned('tenure.jobs_ready'::regclass) as walked,
        pg_stat_get_xact_blocks_fetched('tenure.jobs_ready'::regclass) as turned
    where not exists (select from previous) and not exists (select from ruled where ruled.holds)
),
-- One step along the index finds a lane and the place of its first entry.
found(queue, priority, high, due_at, id) as (
    select gap.queue, head.priority, gap.high, head.due_at, head.id
    from unnest(:gap_queues::text[], :gap_lows::integer[], :gap_highs::integer[]) gap(queue, low, high),
        lateral (
            select job.priority, job.due_at, job.id
            from tenure.jobs job
            where job.queue = gap.queue
              and job.priority > gap.low and job.priority < gap.high
              and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null
            order by job.priority, job.due_at, job.id
            limit 1
        ) head
    union all
    select found.queue, head.priority, found.high, head.due_at, head.id
    from found,
        lateral (
            select job.priority, job.due_at, job.id
            from tenure.jobs job
            where job.queue = found.queue
              and job.priority > found.priority and job.priority < found.high
              and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null
            order by job.priority, job.due_at, job.id
            limit 1
        ) head
),
lanes as materialized (
    select found.queue, found.priority, found.due_at, found.id
    from found
    union all
    select *
    from unnest(:lane_queues::text[], :lane_priorities::smallint[], :lane_dues::timestamptz[], :lane_ids::uuid[])
),
firsts as materialized (
    select lanes.queue, lanes.priority, head.due_at, head.id
    from moment
    cross join lanes
    left join lateral (
            select job.due_at, job.id
            from tenure.jobs job
            where job.queue = lanes.queue
              and job.priority = lanes.priority
              -- part: due
              and (job.due_at, job.id) >= (lanes.due_at, lanes.id)
            order by job.due_at, job.id
            limit 1
        ) head on true
),
-- What is behind the first job of the :limit-th best lane is not wanted, and what is behind the ceiling may not come first.
bar as materialized (
    select last.priority, last.due_at, last.id
    from (
        (
            select firsts.priority, firsts.due_at, firsts.id
            from firsts
            where firsts.id is not null
            order by firsts.priority desc, firsts.due_at, firsts.id
            offset :limit - 1
            limit 1
        )
        union all
        select :ceiling_priority::integer, :ceiling_due::timestamptz, :ceiling_id::uuid
    ) last
    order by last.priority desc, last.due_at, last.id
    limit 1
),
shares as materialized (
    select best.queue, best.priority, best.due_at, best.id, count(*) as share
    from (
        select lane.*
        from moment, bar, firsts lane,
            lateral (
                select job.due_at, job.id
                from tenure.jobs job
                where job.queue = lane.queue
                  and job.priority = lane.priority
                  -- part: due
                  and (job.due_at, job.id) >= (lane.due_at, lane.id)
                  and (job.due_at, job.id) <= (
                      case when bar.priority = lane.priority then bar.due_at else 'infinity' end,
                      case when bar.priority = lane.priority then bar.id else 'ffffffff-ffff-ffff-ffff-ffffffffffff' end
                  )
                order by job.due_at, job.id
                limit :limit
            ) head
        where lane.id is not null
          and (
              lane.priority > bar.priority
              or (lane.priority = bar.priority and (lane.due_at, lane.id) <= (bar.due_at, bar.id))
          )
        order by lane.priority desc, head.due_at, head.id
        limit :limit
    ) best
    group by best.queue, best.priority, best.due_at, best.id
),
locked as materialized (
    select mine.*
    from shares, moment,
        lateral (
            select job.id, job.priority, job.due_at, job.losses
            from tenure.jobs job
            where job.queue = shares.queue
              and job.priority = shares.priority
              -- part: due
              and (job.due_at, job.id) >= (shares.due_at, shares.id)
            order by job.due_at, job.id
            limit shares.share
            for no key update skip locked
        ) mine
),
-- Where others held rows of a lane, its share is made up from all that are asked: a lock must not hide what is due elsewhere.
-- No more is locked than is missing, so as not to hide it from others in turn.
more as materialized (
    select mine.*
    from (
            select * from firsts where firsts.id is not null order by firsts.priority desc, firsts.due_at, firsts.id
        ) lane,
        moment,
        lateral (
            select job.id, job.priority, job.due_at, job.losses
            from tenure.jobs job
            where job.queue = lane.queue
              and job.priority = lane.priority
              -- part: due
              and (job.due_at, job.id) >= (lane.due_at, lane.id)
              and not exists (select from locked where locked.id = job.id)
            order by job.due_at, job.id
            limit :limit
            for no key update skip locked
        ) mine
    where (select count(*) from locked) < (select sum(shares.share) from shares)
    limit (select sum(shares.share) from shares) - (select count(*) from locked)
),
-- A job that was lost while it ran is claimed alone.
ranked as (
    select mine.*,
        row_number() over claiming as place,
        count(*) filter (where mine.losses > 0) over claiming as suspects
    from (select * from locked union all select * from more) mine
    window claiming as (order by mine.priority desc, mine.due_at, mine.id rows unbounded preceding)
),
taken as materialized (
    select ranked.id, ranked.place
    from ranked
    where ranked.place = 1 or (ranked.suspects = 0 and ranked.place <= :limit)
),
seen as materialized (
    select firsts.queue, firsts.priority, coalesce(firsts.due_at, later.due_at) as due_at,
        coalesce(firsts.id, later.id) as id
    from moment
    cross join firsts
    left join lateral (
            select job.due_at, job.id
            from tenure.jobs job
            where firsts.id is null
              and job.queue = firsts.queue
              and job.priority = firsts.priority
              and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null
              and job.due_at > moment.now
            order by job.due_at, job.id
            limit 1
        ) later on true
),
-- part: claimed
    ruled.holds as ruled,
    case when row_number() over () = 1 then moment.now end as at,
    case when row_number() over () = 1 then array(select seen.queue from seen) end as head_queues,
    case when row_number() over () = 1 then array(select seen.priority from seen) end as head_priorities,
    case when row_number() over () = 1 then array(select seen.due_at from seen) end as head_dues,
    case when row_number() over () = 1 then array(select seen.id from seen) end as head_ids
from set_config('tenure.writer', 'store', true) writer
left join previous on true
left join ruled on true
left join moment on true
left join moved on true
