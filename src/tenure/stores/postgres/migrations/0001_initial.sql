-- The spine: jobs, their log, what belongs to them, and the guards that hold also for SQL typed by hand.
-- min_code_version: 1

create schema if not exists tenure;

-- The clock that decides. A function of its own, so that a test database can put another in its place.
create function tenure.clock() returns timestamptz
language sql volatile parallel safe
as 'select clock_timestamp()';

-- A time in a change: null, the old one (-1), the sooner of the old one and now (-2), or an offset from the time of
-- writing.
create function tenure.time_at(offset_us bigint, old timestamptz, at timestamptz) returns timestamptz
language sql stable parallel safe
as $$ select case when offset_us is null then null when offset_us = -1 then old when offset_us = -2 then least(old, at)
                  else at + offset_us * interval '1 microsecond' end $$;

create function tenure.is_terminal(status text) returns boolean
language sql immutable parallel safe
as $$ select status in ('succeeded', 'failed', 'cancelled', 'halted', 'dead_lettered') $$;

-- Every (type, from, to) that the lifecycle's table has, the commonest first, and a claim with its start; what begins a log,
-- and what may commit. Not in SQL, which would be put in place of its call and planned anew for every statement that writes
-- an event.
create function tenure.legal_event(type text, from_status text, to_status text, rev integer, commits boolean,
    requested boolean)
returns boolean
language plpgsql immutable parallel safe
as $$
begin
    return coalesce(case type
        when 'claimed' then from_status in ('queued', 'retry', 'stalled', 'waiting')
            and (to_status = 'claimed' or (to_status = 'running' and rev > 2))
        when 'started' then from_status = 'claimed' and to_status = 'running'
        when 'succeeded' then from_status in ('running', 'stalled') and to_status = 'succeeded'
        when 'enqueued' then from_status is null and to_status = 'queued'
        when 'heartbeat' then from_status in ('claimed', 'running') and to_status = from_status
        when 'stalled' then from_status in ('claimed', 'running') and to_status = 'stalled'
        when 'requeued' then from_status = 'stalled' and to_status = 'queued'
        when 'retry_scheduled' then from_status = 'running' and to_status = 'retry'
        when 'progress' then from_status = 'running' and to_status = from_status
        when 'committed' then from_status = 'running' and to_status = from_status
        when 'failed' then from_status in ('claimed', 'queued', 'running', 'stalled') and to_status = 'failed'
        when 'acked' then from_status = 'claimed' and to_status = from_status
        when 'compensated' then from_status = 'running' and to_status = from_status
        when 'halted' then from_status = 'running' and to_status = 'halted'
        when 'released' then from_status in ('claimed', 'running') and to_status = 'stalled'
        when 'suspended' then from_status = 'running' and to_status = 'waiting'
        when 'woken' then from_status = 'waiting' and to_status = from_status
        when 'signalled' then not tenure.is_terminal(from_status) and to_status = from_status
        when 'cancel_requested' then not tenure.is_terminal(from_status) and to_status = from_status
        when 'cancelled' then not tenure.is_terminal(from_status) and to_status = 'cancelled'
        when 'dead_lettered' then not tenure.is_terminal(from_status) and to_status = 'dead_lettered'
        else false
    end, false) and (rev = 1) = (type = 'enqueued') and (not commits or type in ('succeeded', 'committed'))
        and (requested or rev = 1);
end $$;

create table tenure.migrations (
    number integer primary key,
    name text not null,
    checksum text not null,
    applied_at timestamptz not null default clock_timestamp()
);

create table tenure.meta (
    name text primary key,
    value text not null
);

-- What happens to jobs when things go wrong. A row is named by its content and never changes.
create table tenure.policies (
    id integer generated always as identity primary key,
    body text collate "C" not null unique,
    lease_ms bigint not null check (lease_ms between 1 and 40000000000),
    heartbeat_ms bigint not null check (heartbeat_ms between 1 and 40000000000),
    queued_ms bigint check (queued_ms between 1 and 40000000000),
    claimed_ms bigint check (claimed_ms between 1 and 40000000000),
    running_ms bigint check (running_ms between 1 and 40000000000)
);

-- What never changes stands first; what changes with every step stands last.
create table tenure.jobs (
    id uuid primary key,
    created_at timestamptz not null,
    policy_id integer not null,
    priority smallint not null,
    kind text collate "C" not null,
    queue text collate "C" not null,
    payload text,
    dedupe_key text collate "C",
    request_id text collate "C",
    correlation_id text collate "C",
    trace text,
    submitted_by text,
    tags text,
    partition_key text collate "C",
    parent_id uuid,
    redrive_of uuid,
    status text collate "C" not null,
    previous_status text collate "C",
    rev integer not null,
    transition_count smallint not null,
    attempt integer not null,
    failures integer not null,
    losses integer not null,
    lost boolean not null,
    cancel_requested boolean not null,
    updated_at timestamptz not null,
    due_at timestamptz,
    token uuid,
    lease_expires_at timestamptz,
    heartbeat_deadline_at timestamptz,
    timeout_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    committed_at timestamptz,
    erased_at timestamptz,
    progress smallint,
    owner text,
    progress_message text,
    committed_result text,
    result text,
    partial_result text,
    error text,
    last_error text,
    reason text
) with (fillfactor = 50, toast_tuple_target = 512);

-- Claims read it in order: queue, priority, then the time since due. Its predicate is repeated word for word there.
create index jobs_ready on tenure.jobs (queue, priority, due_at, id)
    where status in ('queued', 'retry', 'waiting', 'stalled') and due_at is not null;
-- Not by the lease's end: that would make every renewal touch the index. By queue, so that limits can be counted.
create index jobs_held on tenure.jobs (queue, id) where status in ('claimed', 'running', 'stalled');
-- Only jobs with a key are in it: limits per key look for those that may be claimed among all the others of their queue.
create index jobs_keyed on tenure.jobs (queue, partition_key, priority desc, due_at, id)
    where partition_key is not null and status in ('queued', 'retry', 'waiting', 'stalled') and due_at is not null;
create index jobs_queued_timeout on tenure.jobs (timeout_at) where timeout_at is not null and status = 'queued';
create unique index jobs_dedupe on tenure.jobs (kind, dedupe_key)
    where dedupe_key is not null
      and status in ('queued', 'claimed', 'running', 'waiting', 'retry', 'stalled');
create unique index jobs_request on tenure.jobs (request_id) where request_id is not null;
create index jobs_correlation on tenure.jobs (correlation_id, id) where correlation_id is not null;

-- The log. Its keys begin with the job, so that it can be divided by ranges of ids. Read `tenure.log`, which has all of it
-- and one row for each event: here a claim that was started in the same breath is one row, `claimed` to `running`, with the
-- revision of its start; and an enqueue whose request is named by its job says nothing of it.
create table tenure.events (
    job_id uuid not null,
    tx xid8 not null default pg_current_xact_id(),
    at timestamptz not null,
    until_at timestamptz,
    rev integer not null,
    attempt integer not null,
    version smallint not null,
    commits boolean not null,
    type text collate "C" not null,
    from_status text collate "C",
    to_status text collate "C" not null,
    actor text not null,
    request_id text collate "C",
    cause text,
    digest text,
    detail text,
    constraint events_key primary key (job_id, rev),
    -- Of enqueues, of which thousands come at a time, it is said at once: a call costs more than that.
    constraint events_legal check (case
        when rev = 1 then type = 'enqueued' and from_status is null and to_status = 'queued' and not commits
        else tenure.legal_event(type, from_status, to_status, rev, commits, request_id is not null)
    end)
);

create unique index events_one_commit on tenure.events (job_id) where commits;
create index events_position on tenure.events (tx);
create index events_at on tenure.events using brin (at) with (pages_per_range = 16, autosummarize = on);

-- The log: one row for each event, with nothing left out.
create view tenure.log as
select event.job_id, event.tx, event.at,
    case half.number when 2 then null else event.until_at end as until_at,
    case half.number when 1 then event.rev - 1 else event.rev end as rev,
    event.attempt, event.version, event.commits,
    case half.number when 2 then 'started' else event.type end as type,
    case half.number when 2 then 'claimed' else event.from_status end as from_status,
    case half.number when 1 then 'claimed' else event.to_status end as to_status,
    event.actor,
    case when event.request_id is null then event.job_id::text else event.request_id end as request_id,
    event.cause, event.digest, event.detail
from tenure.events event
-- 0 is an event that stands for itself; 1 and 2 are a claim and its start.
join (values (0), (1), (2)) half(number)
    on (half.number > 0) = (event.type = 'claimed' and event.to_status = 'running');

-- One row per claim that won something: asked again, it is answered from here.
create table tenure.claims (
    request_id text collate "C" primary key,
    body text not null,
    at timestamptz not null,
    job_ids uuid[] not null
);

-- What a claim has won already. The same claim, sent again while the first is under way, waits for it here and then looks:
-- it would pass over the jobs that the first holds, and answer that nothing is due.
create function tenure.won_before(request text) returns table (body text, job_ids uuid[])
language plpgsql volatile rows 1
as $$
begin
    perform pg_advisory_xact_lock(hashtextextended(request, 0));
    return query select claim.body, claim.job_ids from tenure.claims claim where claim.request_id = request;
end $$;

-- Enqueues that were answered with a job that was there: asked again, the answer is the same.
create table tenure.deduplicated_requests (
    request_id text collate "C" primary key,
    job_id uuid not null,
    digest text not null,
    detail text,
    at timestamptz not null
);
create index deduplicated_requests_job on tenure.deduplicated_requests (job_id);

create table tenure.dead_letters (
    job_id uuid primary key,
    reason_code text not null,
    stage text not null check (stage in ('fetch', 'input', 'exec', 'output', 'commit')),
    last_error text,
    attempts integer not null,
    at timestamptz not null,
    last_owner text,
    last_lease_expires_at timestamptz,
    correlation_id text,
    handled_at timestamptz,
    handled_as text,
    check ((handled_at is null) = (handled_as is null) and handled_as in ('redriven', 'discarded')),
    check (reason_code in ('parse_error', 'validation_failed', 'dependency_unavailable', 'timeout',
                           'exhausted_retries', 'policy_violation', 'infrastructure_failure', 'compensation_failed'))
);

create table tenure.signals (
    job_id uuid not null,
    rev integer not null,
    name text not null,
    payload text,
    at timestamptz not null,
    primary key (job_id, rev)
);

create table tenure.artifacts (
    job_id uuid not null,
    name text collate "C" not null,
    attempt integer not null,
    media_type text not null,
    bytes bigint not null,
    at timestamptz not null,
    body bytea not null,
    primary key (job_id, name)
);

create table tenure.steps (
    job_id uuid not null,
    key text collate "C" not null,
    name text not null,
    attempt integer not null,
    status text not null,
    started_at timestamptz not null,
    finished_at timestamptz,
    result text,
    error text,
    primary key (job_id, key)
);

create table tenure.streams (
    aggregate text collate "C" primary key,
    written bigint not null default 0,
    delivered bigint not null default 0,
    failures integer not null default 0,
    due_at timestamptz,
    owner text,
    token uuid,
    lease_expires_at timestamptz
);

create table tenure.outbox (
    aggregate text collate "C" not null,
    sequence bigint not null,
    id uuid not null unique,
    topic text not null,
    body text not null,
    headers text,
    job_id uuid,
    at timestamptz not null,
    attempts integer not null default 0,
    delivered_at timestamptz,
    dead_at timestamptz,
    last_error text,
    primary key (aggregate, sequence)
);

-- Queues that are paused or have limits. A claim within limits locks its queues here.
create table tenure.queues (
    name text collate "C" primary key,
    paused_at timestamptz,
    concurrency_max integer check (concurrency_max > 0),
    key_concurrency_max integer check (key_concurrency_max > 0),
    rate_count integer check (rate_count > 0),
    rate_seconds double precision check (rate_seconds > 0),
    key_rate_count integer check (key_rate_count > 0),
    key_rate_seconds double precision check (key_rate_seconds > 0),
    fair boolean not null default false,
    turn text collate "C" not null default '',
    spent text,
    updated_at timestamptz not null,
    constraint queues_rates check (
        num_nulls(rate_count, rate_seconds) <> 1 and num_nulls(key_rate_count, key_rate_seconds) <> 1
    )
);

-- Whether anything but priority and age decides what is claimed from a queue.
create function tenure.has_limits(queue tenure.queues) returns boolean
language sql immutable parallel safe
as $$ select queue.paused_at is not null or queue.fair
    or num_nonnulls(queue.concurrency_max, queue.key_concurrency_max, queue.rate_count, queue.key_rate_count) > 0 $$;

-- What the keys of a queue have spent of their rate, until that is over.
create table tenure.rate_usage (
    queue text collate "C" not null,
    key text collate "C" not null,
    spent text not null,
    until_at timestamptz not null,
    primary key (queue, key)
);

create index rate_usage_until on tenure.rate_usage (queue, until_at);

-- What is to be done again and again. A due time is dealt with by moving the row on, with the job, in one statement.
create table tenure.schedules (
    name text collate "C" primary key,
    rev integer not null check (rev > 0),
    kind text not null,
    queue text not null,
    priority smallint not null,
    payload text not null,
    policy_id integer not null,
    dedupe_key text,
    correlation_id text,
    submitted_by text,
    partition_key text,
    tags text,
    cron text not null,
    timezone text not null,
    missed text not null check (missed in ('skip', 'one', 'all')),
    grace_seconds double precision not null check (grace_seconds >= 0),
    source text not null check (source in ('code', 'operator')),
    paused_at timestamptz,
    next_at timestamptz,
    last_at timestamptz,
    updated_at timestamptz not null,
    constraint schedules_forward check (next_at > last_at)
);

create index schedules_next on tenure.schedules (next_at, name) where next_at is not null and paused_at is null;

create table tenure.workers (
    id text primary key,
    host text not null,
    pid integer not null,
    version text not null,
    queues text not null,
    kinds text not null,
    concurrency integer not null,
    started_at timestamptz not null,
    seen_at timestamptz not null,
    stopped_at timestamptz
);

create table tenure.engines (
    id text primary key,
    name text not null,
    capabilities text not null,
    connected_at timestamptz not null,
    seen_at timestamptz not null,
    disconnected_at timestamptz
);

create table tenure.tokens (
    id uuid primary key,
    name text not null unique,
    hash text not null,
    scopes text not null,
    created_at timestamptz not null,
    expires_at timestamptz,
    revoked_at timestamptz
);

create table tenure.operator_log (
    id bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    actor text not null,
    action text not null,
    job_id uuid,
    detail text
);

-- One row per attempt, derived from the log. The lease ends at the time set by its claim or its last renewal.
create view tenure.executions as
select
    claimed.job_id || '/' || claimed.attempt as exec_id,
    claimed.job_id,
    claimed.attempt,
    substr(claimed.actor, strpos(claimed.actor, ':') + 1) as lease_owner,
    coalesce(renewed.until_at, claimed.until_at) as lease_expires_at,
    case
        when done.at is not null then 'done'
        when committed.at is not null then 'committed'
        when ended.at is not null then 'aborted'
        when started.at is not null then 'in_progress'
        else 'leased'
    end as status,
    claimed.at as leased_at,
    started.at as started_at,
    coalesce(done.at, case when committed.at is null then ended.at end) as finished_at,
    case when done.at is null and committed.at is null then coalesce(ended.cause, ended.type) end as cause
from tenure.log claimed
left join lateral (
    select e.at from tenure.log e
    where e.job_id = claimed.job_id and e.attempt = claimed.attempt and e.type = 'started'
) started on true
left join lateral (
    select e.until_at from tenure.log e
    where e.job_id = claimed.job_id and e.attempt = claimed.attempt and e.type = 'heartbeat' and e.until_at is not null
    order by e.rev desc limit 1
) renewed on true
left join lateral (
    select e.at from tenure.log e
    where e.job_id = claimed.job_id and e.attempt = claimed.attempt and e.type = 'committed'
) committed on true
left join lateral (
    select e.at from tenure.log e
    where e.job_id = claimed.job_id and e.attempt = claimed.attempt and e.type = 'succeeded'
) done on true
left join lateral (
    select e.at, e.type, e.cause from tenure.log e
    where e.job_id = claimed.job_id and e.attempt = claimed.attempt and e.rev > claimed.rev
      and e.from_status in ('claimed', 'running') and e.to_status not in ('claimed', 'running')
    order by e.rev limit 1
) ended on true
where claimed.type = 'claimed';

-- Guards. The code should never meet them; a person with psql will.

-- Which part of the store writes, as set inside its own transaction.
create function tenure.writer() returns text
language sql stable parallel safe
as $$ select coalesce(current_setting('tenure.writer', true), '') $$;

create function tenure.refuse() returns trigger
language plpgsql
as $$
begin
    raise exception 'tenure: % of %.% is refused: %', lower(tg_op), tg_table_schema, tg_table_name, tg_argv[0]
        using errcode = 'TN002', hint = 'Change jobs through tenure; the tables are its own.';
end $$;

create function tenure.only_the_store() returns trigger
language plpgsql
as $$
begin
    if tenure.writer() <> all (tg_argv) then
        raise exception 'tenure: % of %.% is refused: only the store writes here',
            lower(tg_op), tg_table_schema, tg_table_name
            using errcode = 'TN002', hint = 'Change jobs through tenure; the tables are its own.';
    end if;
    return null;
end $$;

-- The log: an import writes it first, and so only where there is no job yet.
create function tenure.only_to_the_log() returns trigger
language plpgsql
as $$
begin
    if tenure.writer() = 'store' then
        return null;
    end if;
    if tenure.writer() <> 'import' then
        raise exception 'tenure: % of %.% is refused: only the store writes here',
            lower(tg_op), tg_table_schema, tg_table_name
            using errcode = 'TN002', hint = 'Change jobs through tenure; the tables are its own.';
    end if;
    if exists (select from tenure.jobs) then
        raise exception 'tenure: an import into %.% is refused: there are jobs, and only an empty database is imported into',
            tg_table_schema, tg_table_name
            using errcode = 'TN002', hint = 'Import into a new database.';
    end if;
    return null;
end $$;

-- What a row must be like, and that it has its events: contiguous, from its old status to its new one. Only keys of the new
-- rows are looked up; the trigger on each updated row has made sure that `previous_status` and `transition_count` are
-- true. These are no CHECKs, which PostgreSQL reads and plans anew for every statement: a query of this function is
-- planned once.
create function tenure.check_jobs() returns trigger
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    bad record;
    example record;
begin
    -- Most statements are enqueues, claims or completions of homogeneous batches of plain jobs, which is soon found
    -- out: their events are looked up by one list of keys. Where as many are found as there are rows, each row has its own,
    -- since a revision has but one. Whatever is not plain is checked below, where each rule has its message.
    if tg_op = 'INSERT' then
        if tenure.writer() <> 'import' and (select count(*) from fresh) = (
            select count(*)
            from tenure.events logged
            where logged.job_id = any (array(select fresh.id from fresh)) and logged.rev = 1 and logged.attempt = 0
        ) and not exists (
            select from fresh
            where (fresh.rev = 1 and fresh.transition_count = 1 and fresh.status = 'queued'
                and fresh.attempt = 0 and fresh.failures = 0 and fresh.losses = 0 and not fresh.lost
                and num_nonnulls(fresh.previous_status, fresh.owner, fresh.token, fresh.lease_expires_at,
                    fresh.heartbeat_deadline_at, fresh.started_at, fresh.finished_at, fresh.committed_at, fresh.erased_at, fresh.progress,
                    fresh.committed_result, fresh.result, fresh.partial_result, fresh.error, fresh.reason, fresh.tags) = 0
                and fresh.due_at is not null and fresh.payload is not null and fresh.updated_at = fresh.created_at
                and fresh.created_at between '2000-01-01 00:00+00' and '8000-01-01 00:00+00'
                and fresh.policy_id in (select policy.id from tenure.policies policy)) is not true
        ) then
            return null;
        end if;
    else
        select fresh.rev, fresh.transition_count, fresh.previous_status, fresh.status, fresh.attempt into example
        from fresh
        limit 1;
        if not found then
            return null;
        end if;
        if tenure.writer() = 'store'
            and (example.previous_status, example.status, example.transition_count)
                in (('queued', 'running', 2), ('running', 'succeeded', 1))
            and (
                select written.plain = written.count and logged.fitting = written.count and logged.count = written.count
                from (
                    select count(*), count(*) filter (where fresh.rev = example.rev
                        and fresh.transition_count = example.transition_count
                        and fresh.previous_status = example.previous_status and fresh.status = example.status
                        and fresh.attempt = example.attempt
                        and case example.status
                            when 'running' then num_nulls(fresh.owner, fresh.token, fresh.lease_expires_at,
                                    fresh.heartbeat_deadline_at, fresh.started_at) = 0
                                and num_nonnulls(fresh.result, fresh.finished_at, fresh.committed_at) = 0
                            else num_nulls(fresh.result, fresh.finished_at, fresh.committed_at) = 0
                                and num_nonnulls(fresh.owner, fresh.token, fresh.lease_expires_at,
                                    fresh.heartbeat_deadline_at) = 0
                                and fresh.finished_at >= fresh.started_at
                        end
                        and num_nonnulls(fresh.error, fresh.partial_result, fresh.reason, fresh.committed_result,
                            fresh.progress) = 0
                        and fresh.losses >= 0 and fresh.losses <= fresh.failures and fresh.failures <= fresh.attempt
                        and fresh.created_at <= fresh.updated_at and fresh.created_at <= fresh.started_at
                        and fresh.payload is not null) as plain
                    from fresh
                ) written, (
                    select count(*), count(*) filter (where logged.rev = example.rev and logged.attempt = example.attempt
                        and logged.from_status = example.previous_status and logged.to_status = example.status) as fitting
                    from tenure.events logged
                    where logged.job_id = any (array(select fresh.id from fresh))
                      and logged.rev > example.rev - example.transition_count and logged.rev <= example.rev
                ) logged
            ) then
            return null;
        end if;
    end if;
    select fresh.id, fresh.rev, fresh.previous_status, fresh.status, judged.problem into bad
    from fresh
    -- The events of the revisions of this change, mostly one row. By its key, whatever was known of the tables when
    -- this was planned: hence the offset, over which nothing is moved.
    left join lateral (
        select logged.rev, logged.type, logged.from_status, logged.to_status, logged.attempt
        from tenure.events logged
        where logged.job_id = fresh.id and logged.rev > fresh.rev - fresh.transition_count and logged.rev <= fresh.rev
        offset 0
    ) last on true
    cross join lateral (select case
        when last.rev is null
            or case
                when last.rev = fresh.rev
                    and fresh.transition_count = case when last.type = 'claimed' and last.to_status = 'running' then 2 else 1 end
                    then last.from_status is distinct from fresh.previous_status
                        or last.to_status <> fresh.status or last.attempt <> fresh.attempt
                else not tenure.linked(fresh.id, fresh.rev - fresh.transition_count + 1, fresh.rev,
                    fresh.previous_status, fresh.status, fresh.attempt)
            end
            then 'its events do not say so'
        when not case fresh.status
                when 'running' then fresh.attempt > 0 and fresh.started_at is not null
                when 'succeeded' then fresh.committed_at is not null
                    and (fresh.result is not null or fresh.erased_at is not null)
                when 'queued' then fresh.due_at is not null
                when 'claimed' then fresh.attempt > 0
                when 'retry' then fresh.due_at is not null and fresh.last_error is not null
                when 'waiting' then true
                when 'stalled' then true
                when 'failed' then fresh.error is not null or fresh.erased_at is not null
                when 'cancelled' then fresh.reason is not null
                when 'halted' then fresh.reason is not null
                    and (fresh.partial_result is not null or fresh.erased_at is not null)
                when 'dead_lettered' then fresh.reason is not null
                    and (fresh.last_error is not null or fresh.erased_at is not null)
                else false
            end
            then 'it lacks what belongs to this status'
        when case when fresh.status in ('claimed', 'running')
                then num_nulls(fresh.owner, fresh.token, fresh.lease_expires_at, fresh.heartbeat_deadline_at)
                else num_nonnulls(fresh.owner, fresh.token, fresh.lease_expires_at, fresh.heartbeat_deadline_at)
            end > 0
            then 'jobs that are claimed or running have a lease, and no others'
        when (fresh.result is not null and fresh.status <> 'succeeded')
            or (fresh.error is not null and fresh.status <> 'failed')
            or (fresh.partial_result is not null and fresh.status <> 'halted')
            or (fresh.reason is not null) <> (fresh.status in ('cancelled', 'halted', 'dead_lettered'))
            or (fresh.finished_at is not null) <> tenure.is_terminal(fresh.status)
            or (fresh.committed_at is not null and tenure.is_terminal(fresh.status) and fresh.status <> 'succeeded')
            or (fresh.committed_result is not null
                and (fresh.committed_at is null or fresh.status not in ('running', 'stalled')))
            then 'its outcome does not belong to this status'
        when fresh.rev = 1 and (fresh.status <> 'queued' or fresh.transition_count <> 1 or fresh.previous_status is not null
                or fresh.attempt <> 0 or fresh.failures <> 0 or fresh.lost or fresh.committed_at is not null
                or fresh.erased_at is not null)
            then 'a job begins queued, and with nothing behind it'
        when fresh.rev < 1 or fresh.attempt < 0 or fresh.losses < 0 or fresh.losses > fresh.failures
            or fresh.failures > fresh.attempt or fresh.transition_count not between 1 and 4 or fresh.progress not between 0 and 100
            then 'its counts cannot be'
        when fresh.created_at not between '2000-01-01 00:00+00' and '8000-01-01 00:00+00'
            or fresh.created_at > fresh.updated_at or fresh.started_at < fresh.created_at
            or fresh.finished_at < coalesce(fresh.started_at, fresh.created_at)
            then 'its times are out of order'
        when fresh.payload is null and fresh.erased_at is null
            then 'it has no payload'
        when fresh.tags is not null and (fresh.rev = 1 or tenure.writer() = 'import')
            and jsonb_typeof(fresh.tags::jsonb) <> 'object'
            then 'its tags are not an object'
        when fresh.rev = 1 and not exists (select from tenure.policies policy where policy.id = fresh.policy_id)
            then 'its policy is not there'
        when fresh.status = 'dead_lettered'
            and not exists (select from tenure.dead_letters letter where letter.job_id = fresh.id)
            then 'its dead letter is not there'
        end as problem) judged
    where judged.problem is not null
    limit 1;
    if found then
        raise exception 'tenure: job % cannot go from % to % at revision %: %',
            bad.id, coalesce(bad.previous_status, '(none)'), bad.status, bad.rev, bad.problem
            using errcode = 'TN002', hint = 'Change jobs through tenure; the tables are its own.';
    end if;
    if tg_op = 'INSERT' and tenure.writer() = 'import' then
        -- It comes in its last state, so that its whole log must lead there.
        select fresh.id, fresh.rev into bad
        from fresh
        left join tenure.events first on first.job_id = fresh.id and first.rev = 1
        left join tenure.events last on last.job_id = fresh.id and last.rev = fresh.rev
        where first.at is distinct from fresh.created_at
           or last.at is distinct from fresh.updated_at
           or not tenure.linked(fresh.id, 1, fresh.rev, null, fresh.status, fresh.attempt)
           or exists (select from tenure.events later where later.job_id = fresh.id and later.rev > fresh.rev)
        limit 1;
        if found then
            raise exception 'tenure: job % is refused: its log does not lead to revision %', bad.id, bad.rev
                using errcode = 'TN002', hint = 'Change jobs through tenure; the tables are its own.';
        end if;
    end if;
    return null;
end $$;

-- Whether the log has each of these revisions once, every one from where the one before it led, the first from `first_from`
-- and the last to `last_to` in this attempt.
create function tenure.linked(job uuid, first_rev integer, last_rev integer, first_from text, last_to text, of_attempt integer)
returns boolean
language sql stable
as $$
    select count(*) = last_rev - first_rev + 1
       and bool_and(event.from_status is not distinct from event.before)
       and bool_or(event.rev = last_rev and event.to_status = last_to and event.attempt = of_attempt)
    from (
        select logged.rev, logged.from_status, logged.to_status, logged.attempt,
            lag(logged.to_status, 1, first_from) over (order by logged.rev) as before
        from tenure.log logged
        where logged.job_id = job and logged.rev between first_rev and last_rev
    ) event
$$;

-- Uses up a thousand numbers of transactions: an import dates its events back to numbers that have passed, and a young
-- cluster may not have seen enough of them. To be called outside of a transaction.
create procedure tenure.pass_transactions()
language plpgsql
as $$
begin
    for number in 1 .. 1000 loop
        perform pg_current_xact_id();
        commit;
    end loop;
end $$;

-- What stands out among the changes of a row: erasing empties a terminal job's content and marks it, and nothing else of
-- such a job moves; a commit stands; everything else is refused.
create function tenure.check_step() returns trigger
language plpgsql
as $$
declare
    problem text;
begin
    if old.finished_at is not null then
        if tenure.writer() = 'erasure' and old.erased_at is null and new.erased_at is not null
           and (to_jsonb(old) - '{payload,tags,result,partial_result,error,last_error,progress,progress_message,erased_at}'::text[])
             = (to_jsonb(new) - '{payload,tags,result,partial_result,error,last_error,progress,progress_message,erased_at}'::text[])
           and num_nonnulls(new.payload, new.tags, new.result, new.partial_result, new.error, new.last_error,
                            new.progress, new.progress_message) = 0 then
            return new;
        end if;
        problem := 'it is terminal, and terminal jobs never change';
    elsif new.rev <> old.rev + new.transition_count or new.previous_status is distinct from old.status
       or new.attempt - old.attempt not between 0 and 1 or new.failures < old.failures
       or new.updated_at < old.updated_at or new.erased_at is not null then
        problem := 'a change advances the revision by its events, and time and attempts never go back';
    elsif new.committed_at is distinct from old.committed_at
       or (old.committed_result is not null and old.committed_result is distinct from
           case new.status when 'succeeded' then new.result else new.committed_result end) then
        problem := 'what was committed stands';
    else
        return new;
    end if;
    raise exception 'tenure: job % is refused this update: %', old.id, problem
        using errcode = 'TN002', hint = 'Change jobs through tenure; the tables are its own.';
end $$;

-- Conditions of triggers, too, are read and planned for every statement: these are as short as possible.
create function tenure.check_born() returns trigger
language plpgsql
as $$
begin
    if tenure.writer() = 'import' then
        return new;
    end if;
    raise exception 'tenure: job % is refused: a job begins queued, at revision 1', new.id
        using errcode = 'TN002', hint = 'Change jobs through tenure; the tables are its own.';
end $$;

create trigger jobs_born before insert on tenure.jobs for each row
    when (new.rev <> 1)
    execute function tenure.check_born();
create trigger jobs_step before update on tenure.jobs for each row
    when (old.finished_at is not null or old.committed_at is not null
          or new.rev <> old.rev + new.transition_count or new.previous_status is distinct from old.status
          or new.attempt - old.attempt not between 0 and 1 or new.failures < old.failures
          or new.updated_at < old.updated_at or new.erased_at is not null)
    execute function tenure.check_step();
create trigger jobs_origin before update of id, kind, queue, priority, payload, policy_id, created_at, dedupe_key,
    request_id, correlation_id, trace, submitted_by, tags, partition_key, parent_id, redrive_of on tenure.jobs for each row
    when (old.finished_at is null)
    execute function tenure.refuse('what a job was enqueued with never changes');
create trigger jobs_inserted after insert on tenure.jobs
    referencing new table as fresh for each statement execute function tenure.check_jobs();
create trigger jobs_updated after update on tenure.jobs
    referencing new table as fresh for each statement
    execute function tenure.check_jobs();
create trigger jobs_kept before delete on tenure.jobs for each row
    when (tenure.writer() <> 'retention' or old.status not in ('succeeded', 'failed', 'cancelled', 'halted', 'dead_lettered'))
    execute function tenure.refuse('only retention removes jobs, and only terminal ones');
create trigger jobs_whole before truncate on tenure.jobs
    for each statement execute function tenure.refuse('only retention removes jobs');

create trigger events_written after insert on tenure.events
    for each statement execute function tenure.only_to_the_log();
create trigger events_fixed before update on tenure.events for each row
    when (tenure.writer() not in ('retention', 'erasure') or new.detail is not null
          or (old.job_id, old.tx::text, old.at, old.until_at, old.rev, old.attempt, old.version, old.commits, old.type,
              old.from_status, old.to_status, old.actor, old.request_id, old.cause, old.digest)
             is distinct from
             (new.job_id, new.tx::text, new.at, new.until_at, new.rev, new.attempt, new.version, new.commits, new.type,
              new.from_status, new.to_status, new.actor, new.request_id, new.cause, new.digest))
    execute function tenure.refuse('the log never changes');
create trigger events_kept after delete on tenure.events
    for each statement execute function tenure.only_the_store('retention');
create trigger events_whole before truncate on tenure.events
    for each statement execute function tenure.refuse('the log never changes');

create trigger claims_written after insert on tenure.claims
    for each statement execute function tenure.only_the_store('store', 'import');
create trigger claims_fixed before update on tenure.claims
    for each statement execute function tenure.refuse('a claim that was won never changes');
create trigger claims_kept after delete on tenure.claims
    for each statement execute function tenure.only_the_store('retention');
create trigger claims_whole before truncate on tenure.claims
    for each statement execute function tenure.refuse('only retention removes claims');

create trigger deduplicated_requests_written after insert on tenure.deduplicated_requests
    for each statement execute function tenure.only_the_store('store', 'import');
create trigger deduplicated_requests_fixed before update on tenure.deduplicated_requests
    for each statement execute function tenure.refuse('an answer that was given never changes');
create trigger deduplicated_requests_kept after delete on tenure.deduplicated_requests
    for each statement execute function tenure.only_the_store('retention');
create trigger deduplicated_requests_whole before truncate on tenure.deduplicated_requests
    for each statement execute function tenure.refuse('only retention removes answers');

create trigger schedules_kept before update on tenure.schedules for each row
    when (new.rev <> old.rev + 1 or new.name <> old.name or new.last_at < old.last_at
          or (old.last_at is not null and new.last_at is null))
    execute function tenure.refuse('a schedule changes by one revision, and its due times do not come again');

create trigger dead_letters_written after insert on tenure.dead_letters
    for each statement execute function tenure.only_the_store('store', 'import');
create trigger dead_letters_fixed before update on tenure.dead_letters for each row
    when (case tenure.writer()
              when 'store' then old.handled_at is not null or new.handled_at is null
                  or old.last_error is distinct from new.last_error
              when 'erasure' then new.last_error is not null
                  or (old.handled_at, old.handled_as) is distinct from (new.handled_at, new.handled_as)
              else true
          end
          or (old.job_id, old.reason_code, old.stage, old.attempts, old.at, old.last_owner, old.last_lease_expires_at,
              old.correlation_id)
             is distinct from
             (new.job_id, new.reason_code, new.stage, new.attempts, new.at, new.last_owner, new.last_lease_expires_at,
              new.correlation_id))
    execute function tenure.refuse('a dead letter never changes; only erasure empties it, and whoever deals with it marks it once');
create trigger dead_letters_kept after delete on tenure.dead_letters
    for each statement execute function tenure.only_the_store('retention');
create trigger dead_letters_whole before truncate on tenure.dead_letters
    for each statement execute function tenure.refuse('only retention removes dead letters');

create trigger signals_written after insert on tenure.signals
    for each statement execute function tenure.only_the_store('store', 'import');
create trigger signals_fixed after update on tenure.signals
    for each statement execute function tenure.only_the_store('erasure');
create trigger signals_kept after delete on tenure.signals
    for each statement execute function tenure.only_the_store('retention');
create trigger signals_whole before truncate on tenure.signals
    for each statement execute function tenure.refuse('only retention removes signals');

create trigger operator_log_fixed before update or delete or truncate on tenure.operator_log
    for each statement execute function tenure.refuse('what an operator did stays written down');

create trigger policies_written after insert on tenure.policies
    for each statement execute function tenure.only_the_store('store');
create trigger policies_fixed before update or delete or truncate on tenure.policies
    for each statement execute function tenure.refuse('a policy is what jobs were enqueued with');

-- Writes those of the given jobs that meet no other and were not answered before, each with its event; their ids.
create function tenure.insert_jobs(
    ids uuid[], kinds text[], queues text[], priorities smallint[], payloads text[], policies integer[],
    dedupe_keys text[], request_ids text[], correlation_ids text[], traces text[], submitters text[], tag_texts text[],
    partition_keys text[], parents uuid[], redrives uuid[], delays_ms bigint[], digests text[], details text[],
    actors text[], contract_version smallint, written_at timestamptz, answered text[]
) returns uuid[]
language sql
set tenure.writer = 'store'
as $$
    with given as materialized (
        select *
        from unnest(ids, kinds, queues, priorities, payloads, policies, dedupe_keys, request_ids, correlation_ids,
                    traces, submitters, tag_texts, partition_keys, parents, redrives, delays_ms, digests, details, actors)
            with ordinality as given(id, kind, queue, priority, payload, policy_id, dedupe_key, request_id,
                correlation_id, trace, submitted_by, tags, partition_key, parent_id, redrive_of, delay_ms, digest,
                detail, actor, number)
        where answered = '{}' or coalesce(given.request_id, given.id::text) <> all (answered)
    ),
    born as (
        insert into tenure.jobs (id, created_at, policy_id, priority, kind, queue, payload, dedupe_key, request_id,
            correlation_id, trace, submitted_by, tags, partition_key, parent_id, redrive_of, status, previous_status, rev,
            transition_count, attempt, failures, losses, lost, cancel_requested, updated_at, due_at, timeout_at)
        select given.id, written_at, given.policy_id, given.priority, given.kind, given.queue, given.payload,
            given.dedupe_key, given.request_id, given.correlation_id, given.trace, given.submitted_by, given.tags,
            given.partition_key, given.parent_id, given.redrive_of, 'queued', null, 1, 1, 0, 0, 0, false, false,
            written_at, written_at + given.delay_ms * interval '1 millisecond',
            written_at + (given.delay_ms + policy.queued_ms) * interval '1 millisecond'
        from given
        left join tenure.policies policy on policy.id = given.policy_id
        -- Keys are taken in one order by everybody; of two with one key, the first that was given takes it.
        order by given.kind collate "C", given.dedupe_key collate "C",
            case when given.dedupe_key is null then given.request_id end collate "C", given.number
        on conflict do nothing
        returning id, request_id
    ),
    logged as (
        insert into tenure.events (job_id, at, until_at, rev, attempt, version, commits, type, from_status, to_status,
            actor, request_id, cause, digest, detail)
        select distinct on (born.id) born.id, written_at,
            case when given.delay_ms > 0 then written_at + given.delay_ms * interval '1 millisecond' end,
            1, 0, contract_version, false, 'enqueued', null, 'queued', given.actor,
            born.request_id, null, given.digest, given.detail
        from born
        join given on given.id = born.id
        order by born.id, given.number
    )
    select coalesce(array_agg(born.id), '{}') from born
$$;

-- Enqueues jobs in the current transaction, and settles races for a dedupe key or a request id: a single
-- `on conflict` cannot return a row that was not committed when it began. Answers one row per given job.
create function tenure.enqueue(
    ids uuid[], kinds text[], queues text[], priorities smallint[], payloads text[], policies integer[],
    dedupe_keys text[], request_ids text[], correlation_ids text[], traces text[], submitters text[], tag_texts text[],
    partition_keys text[], parents uuid[], redrives uuid[], delays_ms bigint[], digests text[], details text[],
    actors text[], contract_version smallint
) returns table (ordinal integer, job_id uuid, created boolean, created_at timestamptz)
language plpgsql
set tenure.writer = 'store'
as $$
declare
    written_at timestamptz := tenure.clock();
    -- Mostly no job has a dedupe key: then there is nothing to look up.
    answered text[] := case when exists (select from tenure.deduplicated_requests) then array(
        select answer.request_id
        from unnest(ids, request_ids) given(id, request_id)
        join tenure.deduplicated_requests answer on answer.request_id = coalesce(given.request_id, given.id::text)
    ) else '{}' end;
    made uuid[] := tenure.insert_jobs(ids, kinds, queues, priorities, payloads, policies, dedupe_keys, request_ids,
        correlation_ids, traces, submitters, tag_texts, partition_keys, parents, redrives, delays_ms, digests, details,
        actors, contract_version, written_at, answered);
    used uuid[] := '{}';
    met record;
    tries integer;
begin
    if cardinality(made) = cardinality(ids) then
        return query select n, ids[n], true, written_at from generate_subscripts(ids, 1) n;
        return;
    end if;
    for i in 1 .. cardinality(ids) loop
        tries := 0;
        loop
            if ids[i] = any (made) and ids[i] <> all (used) then
                used := used || ids[i];
                return query select i, ids[i], true, written_at;
                exit;
            end if;
            select logged.job_id as id, logged.digest, logged.detail into met
            from (
                select event.job_id, event.digest, event.detail
                from tenure.jobs job
                join tenure.events event on event.job_id = job.id and event.rev = 1
                where job.id = ids[i] or job.request_id = request_ids[i]
                union all
                select answer.job_id, answer.digest, answer.detail
                from tenure.deduplicated_requests answer
                where answer.request_id = coalesce(request_ids[i], ids[i]::text)
            ) logged
            limit 1;
            if found then
                if (met.digest, met.detail) is distinct from (digests[i], details[i]) then
                    raise exception 'tenure: request id % was used before with another body',
                        coalesce(request_ids[i], ids[i]::text)
                        using errcode = 'TN001', detail = coalesce(request_ids[i], ids[i]::text);
                end if;
                return query select i, met.id, false, written_at;
                exit;
            end if;
            select job.id into met
            from tenure.jobs job
            where job.kind = kinds[i] and job.dedupe_key = dedupe_keys[i]
              and job.status in ('queued', 'claimed', 'running', 'waiting', 'retry', 'stalled');
            if found then
                insert into tenure.deduplicated_requests (request_id, job_id, digest, detail, at)
                values (coalesce(request_ids[i], ids[i]::text), met.id, digests[i], details[i], written_at)
                on conflict do nothing;
                -- The same request was answered beside this one: its answer counts, whichever it is.
                continue when not found;
                return query select i, met.id, false, written_at;
                exit;
            end if;
            -- The job with the key is gone: it ended, or its transaction was rolled back.
            tries := tries + 1;
            if tries > 100 then
                raise exception 'tenure: job % cannot be added: its keys are taken and released again and again', ids[i];
            end if;
            made := made || tenure.insert_jobs(ids[i:i], kinds[i:i], queues[i:i], priorities[i:i], payloads[i:i],
                policies[i:i], dedupe_keys[i:i], request_ids[i:i], correlation_ids[i:i], traces[i:i], submitters[i:i],
                tag_texts[i:i], partition_keys[i:i], parents[i:i], redrives[i:i], delays_ms[i:i], digests[i:i],
                details[i:i], actors[i:i], contract_version, written_at, '{}');
        end loop;
    end loop;
end $$;

-- User connections. Their drivers differ in everything but text, so that one text goes in and one comes out,
-- both JSON. The writer is set inside these functions alone, and no worker is notified: a NOTIFY would take a lock that all
-- commits of the cluster share.

create function tenure.texts(items json) returns text[]
language sql immutable parallel safe
as $$ select array(select json_array_elements_text(items)) $$;

-- The number of a policy, written when it is new. A transaction that inserts the same one is waited for.
create function tenure.policy_number(given json) returns integer
language plpgsql
set tenure.writer = 'store'
as $$
declare
    number integer;
begin
    for tries in 1 .. 100 loop
        select policy.id into number from tenure.policies policy where policy.body = given ->> 'body';
        if found then
            return number;
        end if;
        insert into tenure.policies (body, lease_ms, heartbeat_ms, queued_ms, claimed_ms, running_ms)
        values (given ->> 'body', (given ->> 'lease_ms')::bigint, (given ->> 'heartbeat_ms')::bigint,
            (given ->> 'queued_ms')::bigint, (given ->> 'claimed_ms')::bigint, (given ->> 'running_ms')::bigint)
        on conflict (body) do nothing
        returning id into number;
        if found then
            return number;
        end if;
    end loop;
    raise exception 'tenure: a policy cannot be written: it is taken and released again and again';
end $$;

-- Calls `tenure.enqueue` with the arrays of `jobs`; their policies are places in the array `policies`, from 1.
create function tenure.enqueue_asked(asked json) returns setof json
language plpgsql
as $$
declare
    jobs json := asked -> 'jobs';
    numbers integer[] := array(
        select tenure.policy_number(policy.given)
        from json_array_elements(asked -> 'policies') with ordinality policy(given, place)
        order by policy.place
    );
begin
    return query
    select json_build_object('job_id', answer.job_id, 'created', answer.created, 'created_at', answer.created_at)
    from tenure.enqueue(
        tenure.texts(jobs -> 'ids')::uuid[], tenure.texts(jobs -> 'kinds'), tenure.texts(jobs -> 'queues'),
        tenure.texts(jobs -> 'priorities')::smallint[], tenure.texts(jobs -> 'payloads'),
        array(
            select numbers[job.place::integer]
            from json_array_elements_text(jobs -> 'policies') with ordinality job(place, number)
            order by job.number
        ),
        tenure.texts(jobs -> 'dedupe_keys'), tenure.texts(jobs -> 'request_ids'),
        tenure.texts(jobs -> 'correlation_ids'), tenure.texts(jobs -> 'traces'), tenure.texts(jobs -> 'submitters'),
        tenure.texts(jobs -> 'tags'), tenure.texts(jobs -> 'partition_keys'),
        tenure.texts(jobs -> 'parents')::uuid[], tenure.texts(jobs -> 'redrives')::uuid[],
        tenure.texts(jobs -> 'delays_ms')::bigint[], tenure.texts(jobs -> 'digests'), tenure.texts(jobs -> 'details'),
        tenure.texts(jobs -> 'actors'), (jobs ->> 'version')::smallint
    ) answer
    order by answer.ordinal;
end $$;

-- Enqueues jobs in the user's transaction. A request id that was used before with another body is an answer and not an
-- error, so that the transaction goes on; only then is a subtransaction needed, of which a transaction should not have
-- many. Jobs that were met are read by a statement of their own: the one that waited for them cannot see them.
create function tenure.enqueue_within(request text) returns text
language plpgsql
set timezone = 'UTC'
as $$
declare
    asked json := request::json;
    given json[];
    reused text;
begin
    if array_remove(tenure.texts(asked -> 'jobs' -> 'request_ids'), null) = '{}' then
        given := array(select tenure.enqueue_asked(asked));
    else
        begin
            given := array(select tenure.enqueue_asked(asked));
        exception when sqlstate 'TN001' then
            get stacked diagnostics reused = pg_exception_detail;
            return json_build_object('reused', reused);
        end;
    end if;
    return json_build_object('given', to_json(given), 'met', coalesce((
        select json_object_agg(job.id, to_jsonb(job) - 'token' || jsonb_build_object('policy', policy.body))
        from tenure.jobs job
        left join tenure.policies policy on policy.id = job.policy_id
        where job.id in (
            select (answer ->> 'job_id')::uuid from unnest(given) answer where not (answer ->> 'created')::boolean
        )
    ), '{}'));
end $$;

-- Where in the log the events of a long transaction go. Its number is older than those of changes that were committed
-- while it was open, so an event takes the number of the one before it where that is newer. The tail shows a number only
-- when everything up to it has ended, this transaction too: nothing is skipped, and a job's events stay in their order.
create function tenure.place_after(of_job uuid, of_rev integer) returns xid8
language sql
volatile
as $$
    select greatest(pg_current_xact_id(), (
        select event.tx from tenure.events event where event.job_id = of_job and event.rev = of_rev
    ))
$$;

-- The mark of a commit, in the user's transaction and for the owner of the lease, with its event, and with the
-- messages and artifacts that go along with it.
-- Guard: the revision that was decided upon, the owner's token, and a lease that runs when the row is locked.
-- Where it does not hold, nothing is written, and the answer is the row as it stands, the clock, and the events that
-- this request id has written before. Where a name or an id was used before, nothing is written either: it is answered.
create function tenure.commit_within(request text) returns text
language plpgsql
set tenure.writer = 'store'
set timezone = 'UTC'
as $$
declare
    -- Read once: with artifacts in it, it may be long.
    asked record;
    held tenure.jobs;
    written_at timestamptz;
    taken text;
begin
    select * into asked
    from json_to_record(request::json) as asked(id uuid, rev integer, token uuid, version smallint, actor text,
        request_id text, digest text, result text, messages json, artifacts json);
    select job.* into held
    from tenure.jobs job
    where job.id = asked.id
      and job.rev = asked.rev
      and job.token = asked.token
    for no key update;
    -- Read only now: the time spent waiting for the row counts against the lease.
    written_at := greatest(tenure.clock(), held.updated_at);
    if held.lease_expires_at > written_at then
        select min(artifact.name) into taken
        from json_to_recordset(asked.artifacts) as given(name text)
        join tenure.artifacts artifact on artifact.job_id = held.id and artifact.name = given.name;
        if taken is not null then
            return json_build_object('taken', taken);
        end if;
        select min(message.id::text) into taken
        from json_to_recordset(asked.messages) as given(id uuid)
        join tenure.outbox message on message.id = given.id;
        if taken is not null then
            return json_build_object('known', taken);
        end if;
        insert into tenure.events (tx, job_id, at, rev, attempt, version, commits, type, from_status, to_status,
            actor, request_id, digest)
        values (tenure.place_after(held.id, held.rev), held.id, written_at, held.rev + 1, held.attempt, asked.version, true,
            'committed', held.status, held.status, asked.actor, asked.request_id, asked.digest);
        update tenure.jobs job
        set previous_status = job.status,
            rev = job.rev + 1,
            transition_count = 1,
            updated_at = written_at,
            committed_at = written_at,
            committed_result = asked.result
        where job.id = held.id;
        insert into tenure.artifacts (job_id, name, attempt, media_type, bytes, at, body)
        select held.id, given.name, held.attempt, given.media_type, octet_length(given.body), written_at, given.body
        from (
            select artifact.name, artifact.media_type, decode(artifact.body, 'base64') as body
            from json_to_recordset(asked.artifacts) as artifact(name text, media_type text, body text)
        ) given
        order by given.name collate "C";
        if asked.messages is not null then
            -- The stream's row is locked until the commit, so that numbers are in the order of commits; rows are taken
            -- in the order of aggregates by everybody.
            with message as materialized (
                select *
                from rows from (json_to_recordset(asked.messages)
                    as (id uuid, aggregate text, topic text, body text, headers text))
                    with ordinality as message(id, aggregate, topic, body, headers, number)
            ),
            stream as (
                insert into tenure.streams (aggregate, written, due_at)
                select message.aggregate, count(*), written_at
                from message
                group by message.aggregate
                order by message.aggregate collate "C"
                on conflict (aggregate) do update
                set written = streams.written + excluded.written,
                    due_at = coalesce(streams.due_at, excluded.due_at)
                returning aggregate, written
            )
            insert into tenure.outbox (aggregate, sequence, id, topic, body, headers, job_id, at)
            select message.aggregate,
                stream.written - count(*) over (partition by message.aggregate)
                    + row_number() over (partition by message.aggregate order by message.number),
                message.id, message.topic, message.body, message.headers, held.id, written_at
            from message
            join stream on stream.aggregate = message.aggregate;
        end if;
        return json_build_object('at', written_at);
    end if;
    return json_build_object(
        'now', written_at,
        'job', (
            select to_jsonb(job) || jsonb_build_object('policy', policy.body)
            from tenure.jobs job
            left join tenure.policies policy on policy.id = job.policy_id
            where job.id = asked.id
        ),
        'logged', coalesce((
            select json_agg(event order by event.rev)
            from tenure.log event
            where event.job_id = asked.id and event.request_id = asked.request_id
        ), '[]')
    );
end $$;
