-- Claims up to :limit due jobs by priority and then time since due, and starts them when :transition_count is 2.
-- Guard: rows are locked, rows that other sessions have locked are skipped; only due, uncommitted jobs of the given kinds
-- and queues.
-- A lane is a queue and a priority, read along the ready index; with several, each gives its share of the batch. Known
-- lanes are given with the watermark from which to resume; others are found in the gaps between them.
-- Where one of the queues has limits, nothing is claimed, and `declined` is true: then jobs are chosen within the limits
-- first, and given as :chosen with :within_limits, without lanes.
-- The last row is the claim's statistics: how many entries and pages of the ready index were read; if nothing was due,
-- up to which time, in which lanes; `won_job_ids` if this request has won jobs before, and then no job is claimed now.
with recursive previous as materialized (
    select before.body, before.job_ids from tenure.won_before(:request_id, :wait_ms) before
),
declined as materialized (
    select not :within_limits::boolean and exists (
        select from tenure.queues queue where queue.name = any (:queues::text[]) and tenure.has_limits(queue)
    ) as holds
),
-- part: begun
    where not exists (select from previous) and not exists (select from declined where declined.holds)
),
found(queue, priority, high) as (
    select gap.queue, head.priority, gap.high
    from unnest(:gap_queues::text[], :gap_lows::integer[], :gap_highs::integer[]) gap(queue, low, high),
        lateral (
            select job.priority
            from tenure.jobs job
            where job.queue = gap.queue
              and job.priority > gap.low and job.priority < gap.high
              and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null and job.pinned_version is null
            order by job.priority
            limit 1
        ) head
    union all
    select found.queue, head.priority, found.high
    from found,
        lateral (
            select job.priority
            from tenure.jobs job
            where job.queue = found.queue
              and job.priority > found.priority and job.priority < found.high
              and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null and job.pinned_version is null
            order by job.priority
            limit 1
        ) head
),
lanes as materialized (
    select found.queue, found.priority, '-infinity'::timestamptz as due_at,
        '00000000-0000-0000-0000-000000000000'::uuid as id
    from found
    union all
    select *
    from unnest(:lane_queues::text[], :lane_priorities::smallint[], :lane_dues::timestamptz[], :lane_ids::uuid[])
),
-- Of several lanes the first jobs come first: what is worse than the first job of the :limit-th best lane is not wanted,
-- and not read.
firsts as materialized (
    select lanes.*, head.due_at as head_due_at, head.id as head_id
    from lanes, clock,
        lateral (
            select job.due_at, job.id
            from tenure.jobs job
            where job.queue = lanes.queue
              and job.priority = lanes.priority
              -- part: due
              and (job.due_at, job.id) > (lanes.due_at, lanes.id)
            order by job.due_at, job.id
            limit 1
        ) head
    where (select count(*) from lanes) > 1
),
bar as materialized (
    select firsts.priority, firsts.head_due_at as due_at, firsts.head_id as id
    from firsts
    order by firsts.priority desc, firsts.head_due_at, firsts.head_id
    offset :limit - 1
    limit 1
),
heads as (
    select lane.queue, lane.priority, head.due_at, head.id
    from clock, (
            select firsts.*,
                case when bar.priority = firsts.priority then bar.due_at else 'infinity' end as last_due_at,
                case when bar.priority = firsts.priority then bar.id else 'ffffffff-ffff-ffff-ffff-ffffffffffff' end
                    as last_id
            from firsts
            left join bar on true
            where bar.id is null or firsts.priority >= bar.priority
        ) lane,
        lateral (
            select job.due_at, job.id
            from tenure.jobs job
            where job.queue = lane.queue
              and job.priority = lane.priority
              -- part: due
              and (job.due_at, job.id) >= (lane.head_due_at, lane.head_id)
              and (job.due_at, job.id) <= (lane.last_due_at, lane.last_id)
            order by job.due_at, job.id
            limit :limit
        ) head
),
shares as materialized (
    select lanes.*, :limit::bigint as share
    from lanes
    where (select count(*) from lanes) = 1
    union all
    select lanes.*, first.share
    from (
        select best.queue, best.priority, count(*) as share
        from (select * from heads order by heads.priority desc, heads.due_at, heads.id limit :limit) best
        group by best.queue, best.priority
    ) first
    join lanes on lanes.queue = first.queue and lanes.priority = first.priority
),
locked as materialized (
    select mine.*
    from shares, clock,
        lateral (
            select job.id, job.priority, job.due_at, job.losses
            from tenure.jobs job
            where job.queue = shares.queue
              and job.priority = shares.priority
              -- part: due
              and (job.due_at, job.id) > (shares.due_at, shares.id)
            order by job.due_at, job.id
            limit shares.share
            for no key update skip locked
        ) mine
),
-- Where others held rows of a lane, its share is made up from all lanes: a lock must not hide what is due elsewhere. No
-- more is locked than is missing, so as not to hide it from others in turn.
more as materialized (
    select mine.*
    from (select * from lanes order by lanes.priority desc) lanes, clock,
        lateral (
            select job.id, job.priority, job.due_at, job.losses
            from tenure.jobs job
            where job.queue = lanes.queue
              and job.priority = lanes.priority
              -- part: due
              and (job.due_at, job.id) > (lanes.due_at, lanes.id)
              and not exists (select from locked where locked.id = job.id)
            order by job.due_at, job.id
            limit :limit
            for no key update skip locked
        ) mine
    where (select count(*) from lanes) > 1
      and (select count(*) from locked) < (select sum(shares.share) from shares)
    limit (select sum(shares.share) from shares) - (select count(*) from locked)
),
chosen as materialized (
    select job.id, job.priority, job.due_at, job.losses
    from tenure.jobs job, clock
    where job.id = any (:chosen::uuid[])
      and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null
      and (job.pinned_version is null or job.pinned_version = :code_version::text)
      and job.due_at <= clock.now
      and job.committed_at is null
    for no key update of job skip locked
),
-- A job that was lost while it ran is claimed alone.
ranked as (
    select mine.*,
        row_number() over claiming as place,
        count(*) filter (where mine.losses > 0) over claiming as suspects
    from (select * from locked union all select * from more union all select * from chosen) mine
    window claiming as (
        order by array_position(:chosen::uuid[], mine.id), mine.priority desc, mine.due_at, mine.id
        rows unbounded preceding
    )
),
taken as materialized (
    select ranked.id, ranked.place
    from ranked
    where ranked.place = 1 or (ranked.suspects = 0 and ranked.place <= :limit)
),
-- part: claimed
