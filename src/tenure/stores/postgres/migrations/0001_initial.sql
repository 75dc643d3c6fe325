-- Jobs, their log, the tables of all other parts, and the guards, which also hold for SQL written by hand.
-- min_code_version: 1

create schema if not exists tenure;

-- The clock of leases and due times. A function, so that a test database can replace it.
create function tenure.clock() returns timestamptz
language sql volatile parallel safe
as 'select clock_timestamp()';

-- A time from its encoded offset: none, unchanged (-1), or microseconds after the write. -2 - n: n microseconds after the
-- write, or the old time if that is sooner.
create function tenure.time_at(offset_us bigint, old timestamptz, at timestamptz) returns timestamptz
language sql stable parallel safe
as $$ select case when offset_us is null then null when offset_us = -1 then old when offset_us < -1
                  then least(old, at + (-2 - offset_us) * interval '1 microsecond') else at + offset_us * interval '1 microsecond' end $$;

-- Whether a time is one that every program can read: within the years 1 to 9999, a day off both ends for time zones.
create function tenure.is_readable(at timestamptz) returns boolean
language sql immutable parallel safe
as $$ select at is null or at between '0001-01-02 00:00+00' and '9999-12-30 00:00+00' $$;

create function tenure.is_terminal(status text) returns boolean
language sql immutable parallel safe
as $$ select status in ('succeeded', 'failed', 'cancelled', 'halted', 'dead_lettered') $$;

-- Whether the lifecycle's table has this (type, from, to), and whether the event may be the first of a log or commit. A claim
-- with its start is one event. The most frequent types come first. In plpgsql: a function in SQL would be inlined, and planned
-- again for every statement that writes an event.
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
        when 'failed' then not tenure.is_terminal(from_status) and to_status = 'failed'
        when 'acked' then from_status = 'claimed' and to_status = from_status
        when 'compensated' then from_status = 'running' and to_status = from_status
        when 'unwinding' then from_status in ('queued', 'retry', 'stalled', 'waiting') and to_status = from_status
        when 'halted' then from_status = 'running' and to_status = 'halted'
        when 'released' then from_status in ('claimed', 'running') and to_status = 'stalled'
        when 'suspended' then from_status = 'running' and to_status = 'waiting'
        when 'woken' then not tenure.is_terminal(from_status) and to_status = from_status
        when 'signalled' then not tenure.is_terminal(from_status) and to_status = from_status
        when 'cancel_requested' then not tenure.is_terminal(from_status) and to_status = from_status
        when 'cancelled' then not tenure.is_terminal(from_status) and to_status = 'cancelled'
        when 'dead_lettered' then not tenure.is_terminal(from_status) and to_status = 'dead_lettered'
        else false
    end, false) and (rev = 1) = (type = 'enqueued') and (not commits or type in ('succeeded', 'committed'))
        and (requested or rev = 1);
end $$;

-- The usual cause of each event, which its row leaves out: the table of the lifecycle.
create function tenure.usual_cause(type text) returns text
language sql immutable parallel safe
as $$ select case type
    when 'enqueued' then 'requested'
    when 'claimed' then 'due'
    when 'acked' then 'received'
    when 'started' then 'claimed'
    when 'heartbeat' then 'alive'
    when 'progress' then 'reported'
    when 'committed' then 'effect_applied'
    when 'succeeded' then 'returned'
    when 'retry_scheduled' then 'error'
    when 'failed' then 'permanent_error'
    when 'halted' then 'limit'
    when 'suspended' then 'awaits_signal'
    when 'signalled' then 'sent'
    when 'woken' then 'children_ended'
    when 'unwinding' then 'exhausted_retries'
    when 'compensated' then 'undone'
    when 'released' then 'shutdown'
    when 'cancel_requested' then 'requested'
    when 'cancelled' then 'requested'
    when 'stalled' then 'lease_expired'
    when 'requeued' then 'recovered'
    when 'dead_lettered' then 'exhausted_retries'
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

-- Retry, timeout and recovery policies of jobs. A row never changes.
create table tenure.policies (
    id integer generated always as identity primary key,
    body text collate "C" not null unique,
    lease_ms bigint not null check (lease_ms between 1 and 40000000000),
    heartbeat_ms bigint not null check (heartbeat_ms between 1 and 40000000000),
    queued_ms bigint check (queued_ms between 1 and 40000000000),
    claimed_ms bigint check (claimed_ms between 1 and 40000000000),
    running_ms bigint check (running_ms between 1 and 40000000000),
    deadline_ms bigint check (deadline_ms between 1 and 40000000000)
);

-- The jobs: the projection of the log. Columns that never change come first, those that change with every event last.
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
    awaited boolean not null default false,
    status text collate "C" not null,
    previous_status text collate "C",
    rev integer not null,
    attempt integer not null,
    failures integer not null,
    losses integer not null,
    signal_rev integer not null default 0,
    transition_count smallint not null,
    lost boolean not null,
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
    children_max integer,
    failures_before_undo integer not null default 0,
    compensated_at timestamptz,
    ends_as text collate "C",
    ends_because text,
    waiting_for text collate "C",
    pinned_version text collate "C",
    owner text,
    cancel_reason text,
    progress_message text,
    committed_result text,
    result text,
    partial_result text,
    error text,
    last_error text,
    reason text
) with (fillfactor = 50, toast_tuple_target = 512);

-- Jobs without the tokens of their leases, for reads. A role that may read it need not be allowed to read tokens.
do $$
begin
    execute (
        select format('create view tenure.job_records as select %s from tenure.jobs',
            string_agg(quote_ident(attname), ', ' order by attnum))
        from pg_attribute
        where attrelid = 'tenure.jobs'::regclass and attnum > 0 and attname <> 'token'
    );
end $$;

-- Claims read it in the order of queue, priority and due time. Their predicate must be the same, word for word.
create index jobs_ready on tenure.jobs (queue, priority, due_at, id)
    where status in ('queued', 'retry', 'waiting', 'stalled') and due_at is not null and pinned_version is null;
-- Jobs that only workers with one version of the code may claim.
create index jobs_pinned on tenure.jobs (pinned_version, queue, priority desc, due_at, id)
    where pinned_version is not null and status in ('queued', 'retry', 'waiting', 'stalled');
-- Without the end of the lease, so that a renewal does not update the index. By queue, so that limits can count.
create index jobs_leased on tenure.jobs (queue, id) where status in ('claimed', 'running', 'stalled');
-- Only jobs with a partition key: limits per partition search it for jobs that may be claimed.
create index jobs_partitioned on tenure.jobs (queue, partition_key, priority desc, due_at, id)
    where partition_key is not null and status in ('queued', 'retry', 'waiting', 'stalled') and due_at is not null
      and pinned_version is null;
create index jobs_unleased_timeout on tenure.jobs (timeout_at)
    where timeout_at is not null and status in ('queued', 'retry', 'waiting', 'stalled');
create unique index jobs_dedupe on tenure.jobs (dedupe_key)
    where dedupe_key is not null
      and status in ('queued', 'claimed', 'running', 'waiting', 'retry', 'stalled');
create unique index jobs_request on tenure.jobs (request_id) where request_id is not null;
create index jobs_correlation on tenure.jobs (correlation_id, id) where correlation_id is not null;
-- Listings by a status in which few jobs end: among millions that succeeded these are found at once.
create index jobs_unsuccessful on tenure.jobs (status, id)
    where status in ('failed', 'cancelled', 'halted', 'dead_lettered');
create index jobs_children on tenure.jobs (parent_id, id) where parent_id is not null;
-- Whether enough awaited children have ended is read from those that are live, of which there are few.
create index jobs_awaited on tenure.jobs (parent_id) where awaited and finished_at is null;
-- Recovery reads it: jobs that wait for children.
create index jobs_awaiting on tenure.jobs (id) where children_max is not null;

-- The log. Its keys begin with the job, so that it can be partitioned by ranges of ids. Read `tenure.log`, which has one row
-- for each event with all columns. Here a claim with a start in the same statement is one row, `claimed` to `running`, with
-- the revision of the start; the request id of an enqueue is null where it is the job's id; and the usual cause of an event
-- is null.
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
    steps text,
    constraint events_key primary key (job_id, rev),
    -- Enqueues, which come in thousands, are checked inline: a function call costs more.
    constraint events_legal check (case
        when rev = 1 then type = 'enqueued' and from_status is null and to_status = 'queued' and not commits
        else tenure.legal_event(type, from_status, to_status, rev, commits, request_id is not null)
    end)
);

create unique index events_one_commit on tenure.events (job_id) where commits;
create index events_position on tenure.events (tx);
-- Retention reads it: verbose details that were not blanked yet.
create index events_verbose on tenure.events (at, job_id, rev) where detail is not null and type = 'progress';
-- Look-ups by a type of which there are few, over all of the time. Others are read by time. Each event is compared with the
-- predicate, so it begins with what most enqueues and completions fail.
create index events_unusual on tenure.events (type, at)
    where rev > 1 and not commits
      and type in ('retry_scheduled', 'failed', 'halted', 'suspended', 'signalled', 'woken', 'unwinding', 'compensated', 'released',
                   'cancel_requested', 'cancelled', 'stalled', 'requeued', 'dead_lettered');
create index events_at on tenure.events using brin (at) with (pages_per_range = 16, autosummarize = on);

-- The log: one row for each event, with all columns.
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
    coalesce(event.cause, tenure.usual_cause(case half.number when 2 then 'started' else event.type end)) as cause,
    event.digest, case half.number when 2 then null else event.detail end as detail, event.steps
from tenure.events event
-- 0 is a single event; 1 and 2 are a claim and its start.
join (values (0), (1), (2)) half(number)
    on (half.number > 0) = (event.type = 'claimed' and event.to_status = 'running');

-- Claims that took jobs, one row each, so that a repeated claim returns the same jobs.
create table tenure.claims (
    request_id text collate "C" primary key,
    body text not null,
    at timestamptz not null,
    job_ids uuid[] not null
);

-- The jobs that a claim took before. The same claim, sent again while the first runs, waits here for its end: it would
-- otherwise skip the jobs that the first has locked, and find none due. A claim that had to wait for a lock, here or on a
-- table, takes nothing after `wait_ms`: its worker may have given it up.
create function tenure.won_before(request text, wait_ms bigint) returns table (body text, job_ids uuid[])
language plpgsql volatile rows 1
as $$
begin
    perform pg_advisory_xact_lock(hashtextextended(request, 0));
    if clock_timestamp() - transaction_timestamp() > wait_ms * interval '1 millisecond' then
        raise exception 'tenure: the claim waited % s for a lock and took nothing',
            round(extract(epoch from clock_timestamp() - transaction_timestamp()), 1)
            using errcode = 'TN003';
    end if;
    return query select claim.body, claim.job_ids from tenure.claims claim where claim.request_id = request;
end $$;

-- Enqueue requests that found their dedupe key in use, with the job that has it, so that a repeated request returns the
-- same job.
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
    correlation_id text not null,
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

-- Checkpoints of workflows. The first writer of a key wins. `number` is the order of completion. The digest covers the row
-- without its times; it is a number, so that the digests of a job can be summed. Results of any length stay in the row, where
-- TOAST moves the long ones out.
create table tenure.steps (
    job_id uuid not null,
    number bigint generated by default as identity,
    started_at timestamptz not null,
    finished_at timestamptz not null,
    child_id uuid,
    ordinal integer not null,
    attempt integer not null,
    signal_rev integer,
    key text collate "C" not null,
    kind text collate "C" not null,
    name text not null,
    branch text not null,
    status text collate "C" not null,
    arguments_digest text,
    code_version text,
    content_digest text not null,
    digest numeric not null,
    spend text,
    undo text,
    result text,
    error text,
    primary key (job_id, key),
    constraint steps_kind check (kind in ('step', 'sleep', 'wait', 'spawn', 'decision', 'patch', 'undo')),
    constraint steps_content check (
        case status when 'succeeded' then error is null when 'failed' then result is null else false end
    ),
    constraint steps_numbers check (ordinal >= 0 and attempt >= 1 and signal_rev >= 1 and digest >= 0),
    -- The range of `is_readable`, inline: a function in SQL would be planned again for every statement that writes a step.
    constraint steps_times check (started_at <= finished_at
        and started_at >= '0001-01-02 00:00+00' and finished_at <= '9999-12-30 00:00+00')
);

-- What a run and its children may spend, and have spent, in millionths of each unit. Written when the first call of a run
-- reserves.
create table tenure.budgets (
    root_id uuid not null,
    unit text collate "C" not null,
    limit_amount bigint not null,
    spent bigint not null,
    on_lost_spend text collate "C" not null,
    primary key (root_id, unit),
    constraint budgets_amounts check (limit_amount >= 0 and spent >= 0),
    constraint budgets_lost check (on_lost_spend in ('charge', 'release'))
);

-- What calls in progress may spend at most. The attempt identifies the lease; a reservation of an earlier one is lost.
create table tenure.reservations (
    root_id uuid not null,
    unit text collate "C" not null,
    job_id uuid not null,
    attempt integer not null,
    key text collate "C" not null,
    amount bigint not null,
    primary key (root_id, unit, job_id, attempt, key),
    constraint reservations_amounts check (amount > 0 and attempt >= 1)
);

-- The outbox. A message is stored once. Its writer draws `sequence` at COMMIT, under the lock of its aggregate's row in
-- `streams`, so that the order of sequences within an aggregate is the order of commits. Until then `sequence` is a
-- provisional number that orders the messages of the transaction, and `tx` is set.
create sequence tenure.outbox_sequence;

create table tenure.streams (
    aggregate text collate "C" primary key,
    at timestamptz not null,
    constraint streams_times check (tenure.is_readable(at))
);

create table tenure.outbox (
    sequence bigint not null unique default nextval('tenure.outbox_sequence'),
    id uuid primary key,
    tx xid8,
    aggregate text collate "C",
    topic text collate "C" not null,
    body text not null,
    headers text,
    job_id uuid,
    correlation_id text not null,
    trace text,
    at timestamptz not null,
    endpoint_count integer not null default 0 check (endpoint_count >= 0),
    constraint outbox_aggregate check (aggregate <> '')
);

create index outbox_aggregate_sequence on tenure.outbox (aggregate, sequence) where aggregate is not null;
create index outbox_job on tenure.outbox (job_id) where job_id is not null;
create index outbox_at on tenure.outbox (at);
-- Messages that no endpoint subscribes to.
create index outbox_unserved on tenure.outbox (sequence) where endpoint_count = 0;
create index outbox_unnumbered on tenure.outbox (tx) where tx is not null;

-- Where messages are delivered to. `config` has no secret, only references to secrets.
create table tenure.endpoints (
    name text collate "C" primary key,
    kind text collate "C" not null,
    config text,
    source text not null check (source in ('code', 'operator')),
    created_at timestamptz not null,
    updated_at timestamptz not null,
    seen_at timestamptz,
    failing_since_at timestamptz,
    warned_at timestamptz,
    throttled_until_at timestamptz,
    disabled_at timestamptz,
    disabled_because text,
    constraint endpoints_disabled check ((disabled_at is null) = (disabled_because is null)),
    constraint endpoints_config check (jsonb_typeof(config::jsonb) = 'object'),
    constraint endpoints_times check (
        tenure.is_readable(created_at) and tenure.is_readable(updated_at) and tenure.is_readable(seen_at)
        and tenure.is_readable(failing_since_at) and tenure.is_readable(throttled_until_at)
        and tenure.is_readable(disabled_at)
    )
);

-- Which messages an endpoint receives: by topic, or by the beginning of topics (`mail.*`, `*`), and by fields of the body.
create table tenure.subscriptions (
    endpoint text collate "C" not null references tenure.endpoints (name) on delete cascade,
    topic text collate "C" not null,
    filters text,
    block_seconds double precision check (block_seconds >= 0 and block_seconds < 1e9),
    updated_at timestamptz not null,
    primary key (endpoint, topic),
    constraint subscriptions_filters check (jsonb_typeof(filters::jsonb) = 'object'),
    constraint subscriptions_times check (tenure.is_readable(updated_at))
);

-- What an endpoint has yet to receive: the messages of an aggregate with a sequence above `position`, up to
-- `last_sequence`; or one message, `only_sequence`, that has no aggregate or is sent once more. A row that is leased has a
-- token, and is due when its lease ends.
create table tenure.pending (
    endpoint text collate "C" not null,
    aggregate text collate "C" not null,
    only_sequence bigint not null,
    position bigint not null,
    last_sequence bigint not null,
    due_at timestamptz not null,
    attempts integer not null default 0 check (attempts >= 0),
    head_at timestamptz,
    owner text,
    token uuid,
    primary key (endpoint, aggregate, only_sequence),
    constraint pending_only check ((aggregate = '') = (only_sequence > 0) and only_sequence >= 0),
    constraint pending_lease check ((owner is null) = (token is null)),
    constraint pending_times check (tenure.is_readable(due_at) and tenure.is_readable(head_at))
) with (fillfactor = 70);

create index pending_due on tenure.pending (endpoint, due_at);

-- Each attempt to deliver a message to an endpoint. A dead one is the last: the message was not delivered.
create table tenure.deliveries (
    number bigint generated by default as identity primary key,
    endpoint text collate "C" not null,
    aggregate text collate "C" not null,
    sequence bigint not null,
    attempt integer not null check (attempt >= 1),
    at timestamptz not null,
    outcome text collate "C" not null check (outcome in ('delivered', 'failed', 'dead')),
    status integer,
    duration_ms bigint not null check (duration_ms >= 0),
    error text,
    handled_at timestamptz,
    handled_as text,
    constraint deliveries_error check ((outcome = 'delivered') = (error is null)),
    constraint deliveries_handled check (
        (handled_at is null) = (handled_as is null) and (handled_at is null or outcome = 'dead')
        and handled_as in ('redriven', 'discarded')
    )
);

create index deliveries_stream on tenure.deliveries (endpoint, aggregate, sequence);
create index deliveries_message on tenure.deliveries (sequence);
create index deliveries_delivered on tenure.deliveries (at) where outcome = 'delivered';
create index deliveries_dead on tenure.deliveries (endpoint, number) where outcome = 'dead' and handled_at is null;

-- How far a role has read the log, under a lease.
create table tenure.log_cursors (
    name text collate "C" primary key,
    position text,
    owner text,
    token uuid,
    lease_expires_at timestamptz,
    updated_at timestamptz not null,
    constraint log_cursors_lease check (num_nulls(owner, token, lease_expires_at) in (0, 3)),
    constraint log_cursors_times check (tenure.is_readable(lease_expires_at) and tenure.is_readable(updated_at))
);

-- Whether a topic is the one that a subscription names, or begins as it says.
create function tenure.topic_matches(topic text, pattern text) returns boolean
language sql immutable parallel safe
as $$ select topic = pattern or (right(pattern, 1) = '*' and starts_with(topic, left(pattern, -1))) $$;

-- Queues that are paused or have limits. A claim within limits locks its queues here.
create table tenure.queues (
    name text collate "C" primary key,
    paused_at timestamptz,
    concurrency_max integer check (concurrency_max > 0),
    key_concurrency_max integer check (key_concurrency_max > 0),
    rate_count integer check (rate_count > 0),
    rate_seconds double precision check (rate_seconds > 0 and rate_seconds < 1e9),
    key_rate_count integer check (key_rate_count > 0),
    key_rate_seconds double precision check (key_rate_seconds > 0 and key_rate_seconds < 1e9),
    fair boolean not null default false,
    last_key text collate "C" not null default '',
    usage text,
    updated_at timestamptz not null,
    constraint queues_rates check (
        num_nulls(rate_count, rate_seconds) <> 1 and num_nulls(key_rate_count, key_rate_seconds) <> 1
    ),
    constraint queues_usage check (jsonb_typeof(usage::jsonb) = 'object'),
    constraint queues_times check (tenure.is_readable(paused_at) and tenure.is_readable(updated_at))
);

-- Whether anything but priority and age decides what is claimed from a queue.
create function tenure.has_limits(queue tenure.queues) returns boolean
language sql immutable parallel safe
as $$ select queue.paused_at is not null or queue.fair
    or num_nonnulls(queue.concurrency_max, queue.key_concurrency_max, queue.rate_count, queue.key_rate_count) > 0 $$;

-- Recent starts per partition key under a rate limit, kept until they no longer count.
create table tenure.rate_usage (
    queue text collate "C" not null,
    key text collate "C" not null,
    usage text not null check (jsonb_typeof(usage::jsonb) = 'object'),
    until_at timestamptz not null check (tenure.is_readable(until_at)),
    primary key (queue, key)
);

create index rate_usage_until on tenure.rate_usage (queue, until_at);

-- Schedules. A firing advances the row and inserts its jobs in one statement.
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
    grace_seconds double precision not null check (grace_seconds >= 0 and grace_seconds < 1e9),
    source text not null check (source in ('code', 'operator')),
    paused_at timestamptz,
    next_at timestamptz,
    last_at timestamptz,
    updated_at timestamptz not null,
    constraint schedules_forward check (next_at > last_at),
    constraint schedules_tags check (jsonb_typeof(tags::jsonb) = 'object'),
    constraint schedules_times check (tenure.is_readable(next_at) and tenure.is_readable(last_at)
        and tenure.is_readable(paused_at) and tenure.is_readable(updated_at))
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
    prunes boolean not null default false,
    started_at timestamptz not null,
    seen_at timestamptz not null,
    stopped_at timestamptz,
    constraint workers_lists check (jsonb_typeof(queues::jsonb) = 'array' and jsonb_typeof(kinds::jsonb) = 'array'),
    constraint workers_times check (
        tenure.is_readable(started_at) and tenure.is_readable(seen_at) and tenure.is_readable(stopped_at)
    )
);

create table tenure.operator_log (
    id bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    actor text not null,
    action text not null,
    job_id uuid,
    detail text,
    published_at timestamptz
);

-- What the event publisher has yet to publish.
create index operator_log_unpublished on tenure.operator_log (id) where published_at is null;

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
    case when done.at is null and committed.at is null then ended.cause end as cause
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
    select e.at, e.cause from tenure.log e
    where e.job_id = claimed.job_id and e.attempt = claimed.attempt and e.rev > claimed.rev
      and e.from_status in ('claimed', 'running') and e.to_status not in ('claimed', 'running')
    order by e.rev limit 1
) ended on true
where claimed.type = 'claimed';

-- Guards. They refuse SQL written by hand; the store's own statements never violate them.

-- Which part of the store writes, as set inside its own transaction. A function that a user's transaction calls sets it
-- and restores it before it returns; where it raises, the rollback restores it. It is not in a SET clause of the function:
-- only a superuser may name a parameter there that no extension has defined.
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

-- Guards the log: an import writes it before the jobs, and only into an empty database.
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

-- The rules of a row, and that its events are contiguous and lead from the old status to the new one. It reads events by the
-- keys of the new rows; the trigger on each updated row has checked `previous_status` and `transition_count`. Not as CHECKs,
-- which PostgreSQL plans again for every statement: a query in this function is planned once.
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
    -- Most statements enqueue, claim or complete homogeneous batches. For these one query reads the events by a list of
    -- keys: a revision has at most one event, so equal counts mean that each row has its own. All other statements are
    -- checked below, where each rule has its message.
    if tg_op = 'INSERT' then
        if tenure.writer() <> 'import' and (select count(*) from fresh) = (
            select count(*)
            from tenure.events logged
            where logged.job_id = any (array(select fresh.id from fresh)) and logged.rev = 1 and logged.attempt = 0
        ) and not exists (
            select from fresh
            where (fresh.rev = 1 and fresh.transition_count = 1 and fresh.status = 'queued'
                and fresh.attempt = 0 and fresh.failures = 0 and fresh.losses = 0 and not fresh.lost
                and fresh.signal_rev = 0 and num_nonnulls(fresh.waiting_for, fresh.children_max, fresh.pinned_version, fresh.ends_as, fresh.ends_because,
                    fresh.compensated_at, fresh.previous_status, fresh.owner, fresh.token, fresh.lease_expires_at,
                    fresh.heartbeat_deadline_at, fresh.started_at, fresh.finished_at, fresh.committed_at, fresh.erased_at, fresh.progress,
                    fresh.committed_result, fresh.result, fresh.partial_result, fresh.error, fresh.reason, fresh.tags) = 0
                and fresh.due_at between '0001-01-02 00:00+00' and '9999-12-30 00:00+00'
                and fresh.payload is not null and fresh.updated_at = fresh.created_at
                and (fresh.parent_id is not null or not fresh.awaited) and fresh.failures_before_undo = 0
                and fresh.created_at between '2000-01-01 00:00+00' and '8000-01-01 00:00+00'
                and fresh.policy_id in (select policy.id from tenure.policies policy)) is not true
        ) then
            return null;
        end if;
    else
        select fresh.rev, fresh.transition_count, fresh.previous_status, fresh.status, fresh.attempt, fresh.updated_at
            into example
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
                        and fresh.attempt = example.attempt and fresh.updated_at = example.updated_at
                        and fresh.signal_rev between 0 and fresh.rev - fresh.transition_count
                        and case example.status
                            when 'running' then num_nulls(fresh.owner, fresh.token, fresh.lease_expires_at,
                                    fresh.heartbeat_deadline_at, fresh.started_at) = 0
                                and num_nonnulls(fresh.result, fresh.finished_at, fresh.committed_at) = 0
                            else num_nulls(fresh.result, fresh.finished_at, fresh.committed_at) = 0
                                and num_nonnulls(fresh.owner, fresh.token, fresh.lease_expires_at,
                                    fresh.heartbeat_deadline_at) = 0
                                and fresh.finished_at >= fresh.started_at and fresh.finished_at <= fresh.updated_at
                                and fresh.committed_at = fresh.updated_at
                        end
                        and num_nonnulls(fresh.error, fresh.partial_result, fresh.reason, fresh.committed_result,
                            fresh.waiting_for, fresh.children_max, fresh.ends_as, fresh.ends_because, fresh.compensated_at,
                            fresh.progress) = 0
                        and fresh.losses >= 0 and fresh.losses <= fresh.failures and fresh.failures <= fresh.attempt
                        and fresh.created_at <= fresh.started_at and fresh.started_at <= fresh.updated_at
                        and fresh.payload is not null) as plain
                    from fresh
                ) written, (
                    select count(*), count(*) filter (where logged.rev = example.rev and logged.attempt = example.attempt
                        and logged.at = example.updated_at and logged.commits = (example.status = 'succeeded')
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
    -- The events of this change, mostly one row. The offset is an optimization fence: the plan reads them by key,
    -- whatever the statistics were when it was made.
    left join lateral (
        select logged.rev, logged.type, logged.from_status, logged.to_status, logged.attempt, logged.at, logged.commits
        from tenure.events logged
        where logged.job_id = fresh.id and logged.rev > fresh.rev - fresh.transition_count and logged.rev <= fresh.rev
        offset 0
    ) last on true
    left join lateral (
        select commit.rev, commit.at
        from tenure.events commit
        where commit.job_id = fresh.id and commit.commits and fresh.committed_at is not null
        offset 0
    ) mark on true
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
                or (last.rev = fresh.rev and last.at <> fresh.updated_at)
            then 'its events do not lead to this row'
        when fresh.committed_at is distinct from mark.at or (last.commits and fresh.committed_at is null)
            then 'it is committed by an event that commits, at its time'
        when last.rev > mark.rev and last.type not in ('heartbeat', 'progress', 'succeeded', 'stalled')
            then 'it is committed, and can only be finished'
        when fresh.signal_rev not between 0 and fresh.rev or case
                when last.type in ('signalled', 'woken') then fresh.signal_rev < last.rev
                when last.type = 'claimed' and last.to_status = 'running' then fresh.signal_rev > last.rev - 2
                else fresh.signal_rev = last.rev
            end
            then 'the revision of its last signal or wake is another one'
        when not case fresh.status
                when 'running' then fresh.attempt > 0 and fresh.started_at is not null
                when 'succeeded' then fresh.committed_at is not null
                    and (fresh.result is not null or fresh.erased_at is not null)
                when 'queued' then fresh.due_at is not null
                when 'claimed' then fresh.attempt > 0
                when 'retry' then fresh.due_at is not null and fresh.last_error is not null
                when 'waiting' then fresh.waiting_for is not null
                    and fresh.waiting_for in ('time', 'signal', 'children', 'code')
                    and (fresh.waiting_for <> 'time' or fresh.due_at is not null)
                when 'stalled' then true
                when 'failed' then fresh.error is not null or fresh.erased_at is not null
                when 'cancelled' then fresh.reason is not null
                when 'halted' then fresh.reason is not null
                    and (fresh.partial_result is not null or fresh.erased_at is not null)
                when 'dead_lettered' then fresh.reason is not null
                    and (fresh.last_error is not null or fresh.erased_at is not null)
                else false
            end
            then 'a column that this status requires is null'
        when case when fresh.status in ('claimed', 'running')
                then num_nulls(fresh.owner, fresh.token, fresh.lease_expires_at, fresh.heartbeat_deadline_at)
                else num_nonnulls(fresh.owner, fresh.token, fresh.lease_expires_at, fresh.heartbeat_deadline_at)
            end > 0
            then 'jobs that are claimed or running have a lease, and no others'
        when fresh.waiting_for is not null and fresh.status <> 'waiting'
            then 'only a waiting job waits for something'
        when fresh.children_max is not null and (fresh.waiting_for is distinct from 'children' or fresh.children_max < 0)
            then 'only a job that waits for children has a number of them'
        when fresh.pinned_version is not null and fresh.attempt = 0
            then 'only a job that was claimed is pinned to a version'
        when case when fresh.ends_as is null
                then num_nonnulls(fresh.ends_because, fresh.compensated_at) > 0 or fresh.failures_before_undo <> 0
                else fresh.ends_because is null or fresh.ends_as not in ('failed', 'cancelled', 'dead_lettered')
                    or fresh.failures_before_undo not between 0 and fresh.failures
            end
            then 'the end that follows is one of three, and has a cause'
        when fresh.compensated_at is not null and fresh.finished_at is not null and fresh.status <> fresh.ends_as
            then 'it is compensated, and ends as was recorded'
        when last.type = 'compensated' and fresh.compensated_at is distinct from last.at
            then 'it is compensated by its event, at its time'
        when last.rev = fresh.rev and last.at > fresh.compensated_at
            and last.type not in ('heartbeat', 'progress', 'stalled', 'failed', 'cancelled', 'dead_lettered')
            then 'it is compensated, and can only be finished'
        when fresh.awaited and fresh.parent_id is null
            then 'an awaited job has a parent'
        when (fresh.result is not null and fresh.status <> 'succeeded')
            or (fresh.error is not null and fresh.status <> 'failed')
            or (fresh.partial_result is not null and fresh.status <> 'halted')
            or (fresh.reason is not null) <> (fresh.status in ('cancelled', 'halted', 'dead_lettered'))
            or (fresh.finished_at is not null) <> tenure.is_terminal(fresh.status)
            or (fresh.committed_at is not null and tenure.is_terminal(fresh.status) and fresh.status <> 'succeeded')
            or (fresh.committed_result is not null
                and (fresh.committed_at is null or fresh.status not in ('running', 'stalled')))
            then 'a column of another status is set'
        when fresh.rev = 1 and (fresh.status <> 'queued' or fresh.transition_count <> 1 or fresh.previous_status is not null
                or fresh.attempt <> 0 or fresh.failures <> 0 or fresh.lost or fresh.signal_rev <> 0 or fresh.committed_at is not null
                or fresh.erased_at is not null)
            then 'a job begins queued, without attempts or failures'
        when fresh.rev < 1 or fresh.attempt < 0 or fresh.losses < 0 or fresh.losses > fresh.failures
            or fresh.failures > fresh.attempt or fresh.transition_count not between 1 and 4 or fresh.progress not between 0 and 100
            then 'its counters are out of range'
        when fresh.created_at not between '2000-01-01 00:00+00' and '8000-01-01 00:00+00'
            or fresh.created_at > fresh.updated_at or fresh.started_at < fresh.created_at
            or fresh.finished_at < coalesce(fresh.started_at, fresh.created_at)
            or fresh.started_at > fresh.updated_at or fresh.finished_at > fresh.updated_at
            then 'its times are out of order'
        when not (tenure.is_readable(fresh.due_at) and tenure.is_readable(fresh.lease_expires_at)
                and tenure.is_readable(fresh.heartbeat_deadline_at) and tenure.is_readable(fresh.timeout_at)
                and tenure.is_readable(fresh.updated_at))
            then 'its times are not within the years 1 to 9999'
        when fresh.payload is null and fresh.erased_at is null
            then 'it has no payload'
        when fresh.tags is not null and (fresh.rev = 1 or tenure.writer() = 'import')
            and jsonb_typeof(fresh.tags::jsonb) <> 'object'
            then 'its tags are not an object'
        when fresh.rev = 1 and not exists (select from tenure.policies policy where policy.id = fresh.policy_id)
            then 'its policy does not exist'
        when fresh.status = 'dead_lettered'
            and not exists (select from tenure.dead_letters letter where letter.job_id = fresh.id)
            then 'its dead letter does not exist'
        end as problem) judged
    where judged.problem is not null
    limit 1;
    if found then
        raise exception 'tenure: job % cannot go from % to % at revision %: %',
            bad.id, coalesce(bad.previous_status, '(none)'), bad.status, bad.rev, bad.problem
            using errcode = 'TN002', hint = 'Change jobs through tenure; the tables are its own.';
    end if;
    if tg_op = 'INSERT' and tenure.writer() = 'import' then
        -- An imported job is inserted in its last state, so its whole log must lead there.
        select fresh.id, fresh.rev into bad
        from fresh
        left join tenure.events first on first.job_id = fresh.id and first.rev = 1
        left join tenure.events last on last.job_id = fresh.id and last.rev = fresh.rev
        where first.at is distinct from fresh.created_at
           or last.at is distinct from fresh.updated_at
           or not tenure.linked(fresh.id, 1, fresh.rev, null, fresh.status, fresh.attempt)
           or fresh.signal_rev <> (
               select coalesce(max(event.rev), 0)
               from tenure.events event
               where event.job_id = fresh.id and event.type in ('signalled', 'woken')
           )
           or exists (select from tenure.events later where later.job_id = fresh.id and later.rev > fresh.rev)
        limit 1;
        if found then
            raise exception 'tenure: job % is refused: its log does not lead to revision %', bad.id, bad.rev
                using errcode = 'TN002', hint = 'Change jobs through tenure; the tables are its own.';
        end if;
    end if;
    return null;
end $$;

-- Whether the log has each of these revisions, each from the status that its predecessor led to, the first from `first_from`
-- and the last to `last_to` in this attempt; and whether each claim, and no other event, counts an attempt.
create function tenure.linked(job uuid, first_rev integer, last_rev integer, first_from text, last_to text, of_attempt integer)
returns boolean
language sql stable
as $$
    select count(*) = last_rev - first_rev + 1
       and bool_and(event.from_status is not distinct from event.before
           and event.attempt = event.attempt_before + (event.type = 'claimed')::integer)
       and bool_or(event.rev = last_rev and event.to_status = last_to and event.attempt = of_attempt)
    from (
        select logged.rev, logged.type, logged.from_status, logged.to_status, logged.attempt,
            lag(logged.to_status, 1, first_from) over (order by logged.rev) as before,
            lag(logged.attempt, 1, coalesce((
                select earlier.attempt from tenure.log earlier where earlier.job_id = job and earlier.rev = first_rev - 1
            ), 0)) over (order by logged.rev) as attempt_before
        from tenure.log logged
        where logged.job_id = job and logged.rev between first_rev and last_rev
    ) event
$$;

-- Uses up a thousand transaction ids: an import gives its events ids that have passed, and a new cluster may not have enough
-- of them. To be called outside of a transaction.
create procedure tenure.pass_transactions()
language plpgsql
as $$
begin
    for number in 1 .. 1000 loop
        perform pg_current_xact_id();
        commit;
    end loop;
end $$;

-- Checks an update that the condition of its trigger has selected. Erasure empties the content of a terminal job and sets
-- erased_at; no other update of a terminal job, of a commit, or without its events is accepted.
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
       or ((new.transition_count = 1 or (old.owner is null and new.owner is not null))
           and new.attempt - old.attempt <> (old.owner is null and new.owner is not null)::integer)
       or new.updated_at < old.updated_at or new.erased_at is not null then
        problem := 'a change advances the revision by its events, and time and attempts never go back';
    elsif (old.ends_as is not null and (new.ends_as, new.ends_because, new.failures_before_undo)
            is distinct from (old.ends_as, old.ends_because, old.failures_before_undo))
       or (old.compensated_at is not null and new.compensated_at is distinct from old.compensated_at) then
        problem := 'the end that follows the undo steps is recorded once';
    elsif new.signal_rev <> old.signal_rev and new.signal_rev <= old.rev then
        problem := 'only a new signal or wake sets the revision of the last one';
    elsif (old.committed_at is not null and new.committed_at is distinct from old.committed_at)
       or (old.committed_result is not null and old.committed_result is distinct from
           case new.status when 'succeeded' then new.result else new.committed_result end) then
        problem := 'a commit never changes';
    else
        return new;
    end if;
    raise exception 'tenure: the update of job % is refused: %', old.id, problem
        using errcode = 'TN002', hint = 'Change jobs through tenure; the tables are its own.';
end $$;

-- PostgreSQL also plans conditions of triggers for every statement, so these are short.
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
    when (old.finished_at is not null or old.committed_at is not null or old.ends_as is not null
          or new.rev <> old.rev + new.transition_count or new.previous_status is distinct from old.status
          or new.attempt - old.attempt <> (old.owner is null and new.owner is not null)::integer
          or new.failures < old.failures
          or new.updated_at < old.updated_at or new.erased_at is not null
          or (new.signal_rev <> old.signal_rev and new.signal_rev <= old.rev))
    execute function tenure.check_step();
create trigger jobs_origin before update of id, kind, queue, priority, payload, policy_id, created_at, dedupe_key,
    request_id, correlation_id, trace, submitted_by, tags, partition_key, parent_id, redrive_of, awaited on tenure.jobs for each row
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
              old.from_status, old.to_status, old.actor, old.request_id, old.cause, old.digest, old.steps)
             is distinct from
             (new.job_id, new.tx::text, new.at, new.until_at, new.rev, new.attempt, new.version, new.commits, new.type,
              new.from_status, new.to_status, new.actor, new.request_id, new.cause, new.digest, new.steps))
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
    for each statement execute function tenure.refuse('a deduplicated request never changes');
create trigger deduplicated_requests_kept after delete on tenure.deduplicated_requests
    for each statement execute function tenure.only_the_store('retention');
create trigger deduplicated_requests_whole before truncate on tenure.deduplicated_requests
    for each statement execute function tenure.refuse('only retention removes deduplicated requests');

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
    execute function tenure.refuse('a dead letter never changes; only erasure empties it, and it is marked as handled once');
create trigger dead_letters_kept after delete on tenure.dead_letters
    for each statement execute function tenure.only_the_store('retention');
create trigger dead_letters_whole before truncate on tenure.dead_letters
    for each statement execute function tenure.refuse('only retention removes dead letters');

create trigger signals_written after insert on tenure.signals
    for each statement execute function tenure.only_the_store('store', 'import');
create trigger signals_fixed before update on tenure.signals for each row
    when (tenure.writer() <> 'erasure' or new.payload is not null
          or (old.job_id, old.rev, old.name, old.at) is distinct from (new.job_id, new.rev, new.name, new.at))
    execute function tenure.refuse('a signal never changes; only erasure empties it');
create trigger signals_kept after delete on tenure.signals
    for each statement execute function tenure.only_the_store('retention');
create trigger signals_whole before truncate on tenure.signals
    for each statement execute function tenure.refuse('only retention removes signals');

create trigger artifacts_written after insert on tenure.artifacts
    for each statement execute function tenure.only_the_store('store', 'import');
create trigger artifacts_fixed before update on tenure.artifacts
    for each statement execute function tenure.refuse('an artifact never changes');
create trigger artifacts_kept after delete on tenure.artifacts
    for each statement execute function tenure.only_the_store('retention', 'erasure');
create trigger artifacts_whole before truncate on tenure.artifacts
    for each statement execute function tenure.refuse('only retention and erasure remove artifacts');

create trigger steps_written after insert on tenure.steps
    for each statement execute function tenure.only_the_store('store', 'import');
create trigger steps_fixed before update on tenure.steps for each row
    when (tenure.writer() <> 'erasure' or num_nonnulls(new.result, new.error, new.undo) > 0
          or (old.job_id, old.key, old.number, old.started_at, old.finished_at, old.child_id, old.ordinal, old.attempt,
              old.signal_rev, old.kind, old.name, old.branch, old.status, old.arguments_digest, old.code_version,
              old.content_digest, old.digest, old.spend)
             is distinct from
             (new.job_id, new.key, new.number, new.started_at, new.finished_at, new.child_id, new.ordinal, new.attempt,
              new.signal_rev, new.kind, new.name, new.branch, new.status, new.arguments_digest, new.code_version,
              new.content_digest, new.digest, new.spend))
    execute function tenure.refuse('a step never changes; only erasure empties it');
create trigger steps_kept after delete on tenure.steps
    for each statement execute function tenure.only_the_store('retention');
create trigger steps_whole before truncate on tenure.steps
    for each statement execute function tenure.refuse('only retention removes steps');

create trigger budgets_written after insert or update on tenure.budgets
    for each statement execute function tenure.only_the_store('store', 'import');
create trigger budgets_fixed before update on tenure.budgets for each row
    when (new.spent < old.spent or (old.root_id, old.unit, old.limit_amount, old.on_lost_spend)
          is distinct from (new.root_id, new.unit, new.limit_amount, new.on_lost_spend))
    execute function tenure.refuse('a budget never changes, and its spend only grows');
create trigger budgets_kept after delete on tenure.budgets
    for each statement execute function tenure.only_the_store('retention');
create trigger budgets_whole before truncate on tenure.budgets
    for each statement execute function tenure.refuse('only retention removes budgets');

create trigger reservations_written after insert on tenure.reservations
    for each statement execute function tenure.only_the_store('store', 'import');
create trigger reservations_fixed before update on tenure.reservations
    for each statement execute function tenure.refuse('a reservation never changes');
create trigger reservations_kept after delete on tenure.reservations
    for each statement execute function tenure.only_the_store('store', 'retention');
create trigger reservations_whole before truncate on tenure.reservations
    for each statement execute function tenure.refuse('only the store removes reservations');

create trigger outbox_written after insert on tenure.outbox
    for each statement execute function tenure.only_the_store('store', 'import');
create trigger outbox_fixed before update on tenure.outbox for each row
    when (case tenure.writer()
              when 'store' then (old.body, old.headers) is distinct from (new.body, new.headers)
                  or (old.tx is null and (old.sequence, old.tx) is distinct from (new.sequence, new.tx))
              when 'erasure' then new.body <> 'null' or new.headers is not null
                  or (old.sequence, old.tx, old.endpoint_count) is distinct from (new.sequence, new.tx, new.endpoint_count)
              else true
          end
          or (old.aggregate, old.id, old.topic, old.job_id, old.correlation_id, old.trace, old.at)
             is distinct from
             (new.aggregate, new.id, new.topic, new.job_id, new.correlation_id, new.trace, new.at))
    execute function tenure.refuse('a message never changes; the store numbers it once, and erasure empties it');
create trigger outbox_kept after delete on tenure.outbox
    for each statement execute function tenure.only_the_store('retention');
create trigger outbox_whole before truncate on tenure.outbox
    for each statement execute function tenure.refuse('only retention removes messages');

create trigger deliveries_written after insert on tenure.deliveries
    for each statement execute function tenure.only_the_store('store', 'import');
create trigger deliveries_fixed before update on tenure.deliveries for each row
    when (tenure.writer() <> 'store' or old.handled_at is not null
          or (old.number, old.endpoint, old.aggregate, old.sequence, old.attempt, old.at, old.outcome, old.status,
              old.duration_ms, old.error)
             is distinct from
             (new.number, new.endpoint, new.aggregate, new.sequence, new.attempt, new.at, new.outcome, new.status,
              new.duration_ms, new.error))
    execute function tenure.refuse('a delivery never changes; a dead one is handled once');
create trigger deliveries_kept after delete on tenure.deliveries
    for each statement execute function tenure.only_the_store('retention');
create trigger deliveries_whole before truncate on tenure.deliveries
    for each statement execute function tenure.refuse('only retention removes deliveries');

-- At COMMIT: numbers all messages of the transaction in the order of aggregates, and makes them pending for the endpoints
-- that subscribe to them. Each stream's row is locked until the commit has ended, so that a later commit draws a later
-- number. All transactions lock streams in the order of aggregates, and pending rows in the order of their keys, whatever
-- the order in which the messages were written. It runs with the privileges of the schema's owner: a role that writes
-- messages needs none on the other tables.
create function tenure.number_messages() returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    this_tx xid8 := pg_current_xact_id();
    writer_before text := tenure.writer();
    writer text;
    numbers bigint[];
begin
    if not exists (select from tenure.outbox message where message.tx = this_tx) then
        -- The first message of the transaction has numbered all of them.
        return null;
    end if;
    writer := set_config('tenure.writer', 'store', true);
    insert into tenure.streams (aggregate, at)
    select message.aggregate, max(message.at)
    from tenure.outbox message
    where message.tx = this_tx and message.aggregate is not null
    group by message.aggregate
    order by message.aggregate
    on conflict (aggregate) do update set at = greatest(streams.at, excluded.at);
    with numbered as materialized (
        select ordered.id, nextval('tenure.outbox_sequence') as sequence, ordered.endpoint_count
        from (
            select message.id, (
                select count(distinct subscription.endpoint)
                from tenure.subscriptions subscription
                where tenure.topic_matches(message.topic, subscription.topic)
            ) as endpoint_count
            from tenure.outbox message
            where message.tx = this_tx
            order by message.aggregate, message.sequence
        ) ordered
    ),
    written as (
        update tenure.outbox message
        set sequence = numbered.sequence, tx = null, endpoint_count = numbered.endpoint_count
        from numbered
        where message.id = numbered.id
        returning message.sequence
    )
    select array_agg(written.sequence) into numbers from written;
    insert into tenure.pending (endpoint, aggregate, only_sequence, position, last_sequence, due_at)
    select subscription.endpoint, coalesce(message.aggregate, ''),
        case when message.aggregate is null then message.sequence else 0 end as only_sequence,
        min(message.sequence) - 1, max(message.sequence), tenure.clock()
    from tenure.outbox message
    join tenure.subscriptions subscription on tenure.topic_matches(message.topic, subscription.topic)
    where message.sequence = any (numbers)
    group by subscription.endpoint, coalesce(message.aggregate, ''), only_sequence
    order by subscription.endpoint, coalesce(message.aggregate, ''), only_sequence
    on conflict (endpoint, aggregate, only_sequence) do update set last_sequence = excluded.last_sequence;
    writer := set_config('tenure.writer', writer_before, true);
    return null;
end $$;

create constraint trigger outbox_numbered after insert on tenure.outbox
    deferrable initially deferred
    for each row when (new.tx is not null) execute function tenure.number_messages();

create trigger operator_log_written after insert on tenure.operator_log
    for each statement execute function tenure.only_the_store('store', 'retention', 'erasure', 'import');
create trigger operator_log_published before update on tenure.operator_log for each row
    when (tenure.writer() <> 'store' or old.published_at is not null or new.published_at is null
          or (old.id, old.at, old.actor, old.action, old.job_id, old.detail)
             is distinct from (new.id, new.at, new.actor, new.action, new.job_id, new.detail))
    execute function tenure.refuse('the operator log never changes; its records are published once');
create trigger operator_log_fixed before delete or truncate on tenure.operator_log
    for each statement execute function tenure.refuse('the operator log never changes');

create trigger policies_written after insert on tenure.policies
    for each statement execute function tenure.only_the_store('store');
create trigger policies_fixed before update or delete or truncate on tenure.policies
    for each statement execute function tenure.refuse('a policy never changes: jobs refer to it');

-- How many steps a job has, and the sum of their digests; null for none. The caller has locked the job's row for update, so
-- that no step is being written. Volatile: it must see the steps that were committed since the caller's statement began.
create function tenure.steps_digest(of_job uuid) returns text
language plpgsql volatile
as $$
begin
    return (
        select count(*) || ':' || mod(sum(step.digest),
            115792089237316195423570985008687907853269984665640564039457584007913129639936)
        from tenure.steps step
        where step.job_id = of_job
        having count(*) > 0
    );
end $$;

-- The deadline of the run that spawned the job with these tags, or that went on as it. Null for none.
create function tenure.inherited_deadline(tags text) returns timestamptz
language sql stable
as $$
    select case when tags like '%"tenure.deadline":%' then (tags::jsonb ->> 'tenure.deadline')::timestamptz end
$$;

-- Inserts those of the given jobs that conflict with no other job and no deduplicated request, each with its event. Returns
-- their ids. The caller has set the writer.
create function tenure.insert_jobs(
    ids uuid[], kinds text[], queues text[], priorities smallint[], payloads text[], policies integer[],
    dedupe_keys text[], request_ids text[], correlation_ids text[], traces text[], submitters text[], tag_texts text[],
    partition_keys text[], parents uuid[], redrives uuid[], awaited boolean[], delays_ms bigint[], due_ats timestamptz[], digests text[],
    details text[], causes text[], actors text[], contract_version smallint, written_at timestamptz, answered text[]
) returns uuid[]
language sql
as $$
    with given as materialized (
        select given.*,
            greatest(written_at, coalesce(given.wanted_at, written_at + given.delay_ms * interval '1 millisecond')) as due_at
        from unnest(ids, kinds, queues, priorities, payloads, policies, dedupe_keys, request_ids, correlation_ids,
                    traces, submitters, tag_texts, partition_keys, parents, redrives, awaited, delays_ms, due_ats, digests, details,
                    causes, actors)
            with ordinality as given(id, kind, queue, priority, payload, policy_id, dedupe_key, request_id,
                correlation_id, trace, submitted_by, tags, partition_key, parent_id, redrive_of, awaited, delay_ms, wanted_at,
                digest, detail, cause, actor, number)
        where answered = '{}' or coalesce(given.request_id, given.id::text) <> all (answered)
    ),
    born as (
        insert into tenure.jobs (id, created_at, policy_id, priority, kind, queue, payload, dedupe_key, request_id,
            correlation_id, trace, submitted_by, tags, partition_key, parent_id, redrive_of, awaited, status, previous_status, rev,
            transition_count, attempt, failures, losses, lost, updated_at, due_at, timeout_at)
        select given.id, written_at, given.policy_id, given.priority, given.kind, given.queue, given.payload,
            given.dedupe_key, given.request_id, given.correlation_id, given.trace, given.submitted_by, given.tags,
            given.partition_key, given.parent_id, given.redrive_of, given.awaited, 'queued', null, 1, 1, 0, 0, 0, false,
            written_at, given.due_at,
            least(given.due_at + policy.queued_ms * interval '1 millisecond',
                written_at + policy.deadline_ms * interval '1 millisecond', tenure.inherited_deadline(given.tags))
        from given
        left join tenure.policies policy on policy.id = given.policy_id
        -- Every transaction inserts keys in the same order, so that none deadlocks; of two with one key, the first given
        -- inserts it.
        order by given.dedupe_key collate "C",
            case when given.dedupe_key is null then given.request_id end collate "C", given.number
        on conflict do nothing
        returning id, request_id
    ),
    logged as (
        insert into tenure.events (job_id, at, until_at, rev, attempt, version, commits, type, from_status, to_status,
            actor, request_id, cause, digest, detail)
        select distinct on (born.id) born.id, written_at,
            case when given.due_at > written_at then given.due_at end,
            1, 0, contract_version, false, 'enqueued', null, 'queued', given.actor,
            born.request_id, given.cause, given.digest, given.detail
        from born
        join given on given.id = born.id
        order by born.id, given.number
    )
    select coalesce(array_agg(born.id), '{}') from born
$$;

-- Enqueues jobs in the current transaction, and resolves races for a dedupe key or a request id: a single
-- `on conflict` cannot return a row that was not committed when it began. Returns one row per given job.
create function tenure.enqueue_jobs(
    ids uuid[], kinds text[], queues text[], priorities smallint[], payloads text[], policies integer[],
    dedupe_keys text[], request_ids text[], correlation_ids text[], traces text[], submitters text[], tag_texts text[],
    partition_keys text[], parents uuid[], redrives uuid[], awaited boolean[], delays_ms bigint[], due_ats timestamptz[], digests text[],
    details text[], causes text[], actors text[], contract_version smallint
) returns table (ordinal integer, job_id uuid, created boolean, created_at timestamptz)
language plpgsql
as $$
declare
    writer_before text := tenure.writer();
    writer text := set_config('tenure.writer', 'store', true);
    written_at timestamptz := tenure.clock();
    -- Mostly no job has a dedupe key, and the table is empty.
    answered text[] := case when exists (select from tenure.deduplicated_requests) then array(
        select answer.request_id
        from unnest(ids, request_ids) given(id, request_id)
        join tenure.deduplicated_requests answer on answer.request_id = coalesce(given.request_id, given.id::text)
    ) else '{}' end;
    made uuid[] := tenure.insert_jobs(ids, kinds, queues, priorities, payloads, policies, dedupe_keys, request_ids,
        correlation_ids, traces, submitters, tag_texts, partition_keys, parents, redrives, awaited, delays_ms, due_ats, digests,
        details, causes, actors, contract_version, written_at, answered);
    used uuid[] := '{}';
    met record;
    tries integer;
begin
    if cardinality(made) = cardinality(ids) then
        writer := set_config('tenure.writer', writer_before, true);
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
            select job.id, job.kind into met
            from tenure.jobs job
            where job.dedupe_key = dedupe_keys[i]
              and job.status in ('queued', 'claimed', 'running', 'waiting', 'retry', 'stalled');
            if found then
                if met.kind <> kinds[i] then
                    raise exception 'tenure: dedupe key % belongs to live job % of kind %', dedupe_keys[i], met.id, met.kind
                        using errcode = 'TN004', detail = json_build_object('dedupe_key', dedupe_keys[i],
                            'job_id', met.id, 'kind', met.kind);
                end if;
                insert into tenure.deduplicated_requests (request_id, job_id, digest, detail, at)
                values (coalesce(request_ids[i], ids[i]::text), met.id, digests[i], details[i], written_at)
                on conflict do nothing;
                -- A concurrent transaction has written this request: its result counts.
                continue when not found;
                return query select i, met.id, false, written_at;
                exit;
            end if;
            -- The job with the key has ended, or its transaction was rolled back.
            tries := tries + 1;
            if tries > 100 then
                raise exception 'tenure: job % cannot be added: other transactions keep taking and releasing its keys', ids[i];
            end if;
            made := made || tenure.insert_jobs(ids[i:i], kinds[i:i], queues[i:i], priorities[i:i], payloads[i:i],
                policies[i:i], dedupe_keys[i:i], request_ids[i:i], correlation_ids[i:i], traces[i:i], submitters[i:i],
                tag_texts[i:i], partition_keys[i:i], parents[i:i], redrives[i:i], awaited[i:i], delays_ms[i:i], due_ats[i:i],
                digests[i:i], details[i:i], causes[i:i], actors[i:i], contract_version, written_at, '{}');
        end loop;
    end loop;
    writer := set_config('tenure.writer', writer_before, true);
end $$;

-- User connections. All drivers support text, so these functions take and return JSON as text. They set the writer and restore
-- it before they return. They notify no worker: a NOTIFY would take a lock that all commits of the cluster share.

create function tenure.texts(items json) returns text[]
language sql immutable parallel safe
as $$ select array(select json_array_elements_text(items)) $$;

-- The id of a policy, which is inserted if it is new. Waits for a transaction that inserts the same one.
create function tenure.policy_number(given json) returns integer
language plpgsql
as $$
declare
    writer_before text := tenure.writer();
    writer text;
    number integer;
begin
    for tries in 1 .. 100 loop
        select policy.id into number from tenure.policies policy where policy.body = given ->> 'body';
        if found then
            return number;
        end if;
        writer := set_config('tenure.writer', 'store', true);
        insert into tenure.policies (body, lease_ms, heartbeat_ms, queued_ms, claimed_ms, running_ms, deadline_ms)
        values (given ->> 'body', (given ->> 'lease_ms')::bigint, (given ->> 'heartbeat_ms')::bigint,
            (given ->> 'queued_ms')::bigint, (given ->> 'claimed_ms')::bigint, (given ->> 'running_ms')::bigint,
            (given ->> 'deadline_ms')::bigint)
        on conflict (body) do nothing
        returning id into number;
        writer := set_config('tenure.writer', writer_before, true);
        if number is not null then
            return number;
        end if;
    end loop;
    raise exception 'tenure: a policy cannot be written: other transactions keep inserting it and rolling back';
end $$;

-- Calls `tenure.enqueue_jobs` with the arrays of `jobs`; their policies are places in the array `policies`, from 1.
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
    from tenure.enqueue_jobs(
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
        tenure.texts(jobs -> 'awaited')::boolean[],
        tenure.texts(jobs -> 'delays_ms')::bigint[], tenure.texts(jobs -> 'due_ats')::timestamptz[],
        tenure.texts(jobs -> 'digests'), tenure.texts(jobs -> 'details'), tenure.texts(jobs -> 'causes'), tenure.texts(jobs -> 'actors'), (jobs ->> 'version')::smallint
    ) answer
    order by answer.ordinal;
end $$;

-- Enqueues jobs in the user's transaction. A request id that was used before with another body, or a dedupe key of a live
-- job of another kind, is returned and not raised, so that the transaction goes on. Only requests with a request id or a
-- dedupe key need a subtransaction, of which a transaction should not have many. Existing jobs are read by a separate
-- statement: the one that waited for them cannot see them.
create function tenure.enqueue_within(request text) returns text
language plpgsql
set timezone = 'UTC'
as $$
declare
    asked json := request::json;
    given json[];
    refusal text;
begin
    if array_remove(tenure.texts(asked -> 'jobs' -> 'request_ids') || tenure.texts(asked -> 'jobs' -> 'dedupe_keys'), null)
        = '{}' then
        given := array(select tenure.enqueue_asked(asked));
    else
        begin
            given := array(select tenure.enqueue_asked(asked));
        exception when sqlstate 'TN001' then
            get stacked diagnostics refusal = pg_exception_detail;
            return json_build_object('reused', refusal);
        when sqlstate 'TN004' then
            get stacked diagnostics refusal = pg_exception_detail;
            return json_build_object('conflict', refusal::json);
        end;
    end if;
    return json_build_object('given', to_json(given), 'met', coalesce((
        select json_object_agg(job.id, to_jsonb(job) || jsonb_build_object('policy', policy.body))
        from tenure.job_records job
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

-- Writes messages, in their order. A message of no job has its own id for its correlation id, unless another is given.
create function tenure.insert_messages(messages json, of_job uuid, correlation_id text, trace text, written_at timestamptz)
returns void
language sql
volatile
as $$
    insert into tenure.outbox (tx, id, aggregate, topic, body, headers, job_id, correlation_id, trace, at)
    select pg_current_xact_id(), message.id, message.aggregate, message.topic, message.body, message.headers, of_job,
        coalesce(insert_messages.correlation_id, message.id::text), insert_messages.trace, written_at
    from rows from (json_to_recordset(messages) as (id uuid, aggregate text, topic text, body text, headers text))
        with ordinality as message(id, aggregate, topic, body, headers, number)
    order by message.number
$$;

-- Writes messages of no job in the user's transaction. Where a message id is in use, nothing is written: it returns that.
create function tenure.post_within(request text) returns text
language plpgsql
set timezone = 'UTC'
as $$
declare
    writer_before text := tenure.writer();
    writer text;
    asked record;
    known text;
begin
    select * into asked
    from json_to_record(request::json) as asked(messages json, correlation_id text, trace text);
    select min(message.id::text) into known
    from json_to_recordset(asked.messages) as given(id uuid)
    join tenure.outbox message on message.id = given.id;
    if known is not null then
        return json_build_object('known', known);
    end if;
    writer := set_config('tenure.writer', 'store', true);
    perform tenure.insert_messages(asked.messages, null, asked.correlation_id, asked.trace, tenure.clock());
    writer := set_config('tenure.writer', writer_before, true);
    return '{}';
end $$;

-- Writes the commit mark in the user's transaction, for the owner of the lease: the event, the row, messages and artifacts.
-- Guard: the revision that was decided upon, the owner's token, and a lease that runs when the row is locked.
-- Where it does not hold, nothing is written: it returns the current row, the clock, and the events that this request id has
-- written before. Where an artifact's name or a message id is in use, nothing is written: it returns that.
create function tenure.commit_within(request text) returns text
language plpgsql
set timezone = 'UTC'
as $$
declare
    writer_before text := tenure.writer();
    writer text;
    -- Read once: with artifacts in it, it may be long.
    asked record;
    held tenure.jobs;
    written_at timestamptz;
    taken text;
begin
    select * into asked
    from json_to_record(request::json) as asked(id uuid, rev integer, token uuid, version smallint, actor text,
        request_id text, digest text, detail text, steps text, result text, messages json, artifacts json);
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
        writer := set_config('tenure.writer', 'store', true);
        insert into tenure.events (tx, job_id, at, rev, attempt, version, commits, type, from_status, to_status,
            actor, request_id, digest, detail, steps)
        values (tenure.place_after(held.id, held.rev), held.id, written_at, held.rev + 1, held.attempt, asked.version, true,
            'committed', held.status, held.status, asked.actor, asked.request_id, asked.digest, asked.detail, asked.steps);
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
        perform tenure.insert_messages(asked.messages, held.id, coalesce(held.correlation_id, held.id::text), held.trace,
            written_at);
        writer := set_config('tenure.writer', writer_before, true);
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

-- Public functions: `tenure.enqueue` and `tenure.signal`, for clients in any language and for triggers. They run with the rights
-- of the schema's owner, so that a role that may only execute them needs no table. Parameters are added at the end and with a
-- default; any other change is a new number of `tenure.api_version`. They notify no worker.

create function tenure.api_version() returns integer
language sql immutable parallel safe
as $$ select 1 $$;

create function tenure.require(fits boolean, field text, problem text) returns void
language plpgsql immutable
as $$
begin
    if fits is not true then
        raise exception 'tenure: % %', field, problem using errcode = '22023';
    end if;
end $$;

create function tenure.require_text(given text, field text, length_max integer) returns void
language plpgsql immutable strict
as $$
begin
    perform tenure.require(given <> '', field, 'must not be empty');
    perform tenure.require(length(given) <= length_max and octet_length(given) <= 2 * length_max, field,
        format('has more than %s characters', length_max));
end $$;

create function tenure.require_name(given text, field text) returns void
language plpgsql immutable
as $$
begin
    perform tenure.require(given is not null, field, 'is missing');
    perform tenure.require_text(given, field, 200);
    perform tenure.require(given !~ '[\x01-\x1f]' and given !~ '^\s' and given !~ '\s$', field,
        'has control characters or outer spaces');
end $$;

-- The text of a value as it is stored. `jsonb` excludes NUL, lone surrogates, duplicate keys, NaN and infinities.
create function tenure.content_text(value jsonb, field text) returns text
language plpgsql immutable
as $$
begin
    perform tenure.require(value is not null, field, 'is missing; JSON null is ''null''');
    perform tenure.require(octet_length(value::text) <= 262144, field,
        format('is %s bytes of JSON, and at most 262144 are allowed', octet_length(value::text)));
    perform tenure.require(
        not jsonb_path_exists(value, 'strict $.**{64 to last} ? (@.type() == "array" || @.type() == "object")'), field,
        'is nested more than 64 levels deep');
    perform tenure.require(
        not jsonb_path_exists(value, 'strict $.** ? (@ > 9007199254740992 || @ < -9007199254740992)'), field,
        'has a number beyond ±2^53, so other readers of JSON would change it; use text');
    return value::text;
end $$;

-- The digest of content, as in the log: 128 bits of its SHA-256, as 22 characters of URL-safe base64.
create function tenure.content_digest(content text) returns text
language sql immutable parallel safe
as $$
    select translate(left(encode(substring(sha256(convert_to(content, 'UTF8')) for 16), 'base64'), 22), '+/', '-_')
$$;

-- An id that begins with the time (UUIDv7), like those that clients make.
create function tenure.new_job_id() returns uuid
language sql volatile
as $$
    select encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        placing substring(int8send(floor(extract(epoch from tenure.clock()) * 1000)::bigint) from 3) from 1 for 6), 52, 1), 53, 1),
        'hex')::uuid
$$;

-- A number of a policy as JSON text, in thousandths; `null` where it may be left open.
create function tenure.policy_seconds(policy jsonb, field text, usual numeric, lowest numeric, highest numeric, optional boolean)
returns text
language plpgsql immutable
as $$
declare
    given jsonb := policy #> string_to_array(field, '.');
    seconds numeric := usual;
begin
    if optional and given = 'null' then
        return 'null';
    end if;
    if given is not null then
        perform tenure.require(jsonb_typeof(given) = 'number', 'policy.' || field, format('must be a number, not %s', given));
        seconds := round(given::numeric, 3);
    elsif usual is null then
        return 'null';
    end if;
    perform tenure.require(seconds between lowest and highest, 'policy.' || field,
        format('is %s, and must lie between %s and %s', seconds, lowest, highest));
    return case when seconds = trunc(seconds) then trunc(seconds) || '.0' else trim_scale(seconds)::text end;
end $$;

create function tenure.policy_choice(policy jsonb, field text, choices text[]) returns text
language sql immutable
as $$
    select to_json(coalesce(policy ->> field, choices[1]))::text
    from tenure.require(not policy ? field or policy ->> field = any (choices), 'policy.' || field,
        format('is %s, and must be one of %s', policy -> field, array_to_string(choices, ', ')))
$$;

create function tenure.require_fields(given jsonb, field text, known text[]) returns void
language plpgsql immutable
as $$
declare
    other text;
begin
    perform tenure.require(jsonb_typeof(given) = 'object', field, 'must be an object');
    select min(name) into other from jsonb_object_keys(given) name where name <> all (known);
    perform tenure.require(other is null, field, format('has no field %s; it has %s', other, array_to_string(known, ', ')));
end $$;

-- The body of a policy with these fields and the defaults of the others, as clients write it.
create function tenure.policy_body(policy jsonb) returns text
language plpgsql immutable
as $$
declare
    year constant numeric := 366 * 86400;
    attempts jsonb := coalesce(policy -> 'max_attempts', '20');
    signals_max jsonb := policy -> 'signals_max';
    secret jsonb := coalesce(nullif(policy -> 'secret', 'null'), '[]');
begin
    perform tenure.require_fields(policy, 'policy', array['backoff', 'deadline_seconds', 'heartbeat_seconds', 'lease_seconds',
        'max_attempts', 'on_exhausted', 'on_lost', 'on_timeout', 'secret', 'signals_max', 'timeouts']);
    perform tenure.require_fields(coalesce(policy -> 'backoff', '{}'), 'policy.backoff',
        array['base_seconds', 'factor', 'max_seconds']);
    perform tenure.require_fields(coalesce(policy -> 'timeouts', '{}'), 'policy.timeouts',
        array['claimed_seconds', 'queued_seconds', 'running_seconds']);
    perform tenure.require(case jsonb_typeof(attempts)
            when 'number' then attempts::numeric between 1 and 30000 and trunc(attempts::numeric) = attempts::numeric end,
        'policy.max_attempts', format('is %s, and must be a whole number between 1 and 30000', attempts));
    perform tenure.require(coalesce(signals_max, 'null') = 'null' or case jsonb_typeof(signals_max)
            when 'number' then signals_max::numeric between 0 and 1000000 and trunc(signals_max::numeric) = signals_max::numeric end,
        'policy.signals_max', format('is %s, and must be a whole number between 0 and 1000000', signals_max));
    perform tenure.require(jsonb_typeof(secret) = 'array' and jsonb_array_length(secret) <= 50
            and not exists (
                select from jsonb_array_elements(secret) name
                where jsonb_typeof(name) <> 'string' or name #>> '{}' !~ '^[A-Za-z_][A-Za-z0-9_-]{0,99}$'
            ),
        'policy.secret', 'must be a list of at most 50 names of fields');
    return format('{"backoff":{"base_seconds":%s,"factor":%s,"max_seconds":%s},"budget":null,"deadline_seconds":%s,'
        '"heartbeat_seconds":%s,'
        '"lease_seconds":%s,"max_attempts":%s,"on_exhausted":%s,"on_lost":%s,"on_timeout":%s,"secret":%s,'
        '"signals_max":%s,"timeouts":{"claimed_seconds":%s,"queued_seconds":%s,"running_seconds":%s}}',
        tenure.policy_seconds(policy, 'backoff.base_seconds', 0.5, 0, year, false),
        tenure.policy_seconds(policy, 'backoff.factor', 2, 1, 1000, false),
        tenure.policy_seconds(policy, 'backoff.max_seconds', 14400, 0, year, false),
        tenure.policy_seconds(policy, 'deadline_seconds', null, 0.001, year, true),
        tenure.policy_seconds(policy, 'heartbeat_seconds', null, 0.001, year, true),
        tenure.policy_seconds(policy, 'lease_seconds', 60, 0.01, year, false),
        trunc(attempts::numeric),
        tenure.policy_choice(policy, 'on_exhausted', array['dead_letter', 'fail']),
        tenure.policy_choice(policy, 'on_lost', array['requeue', 'fail', 'dead_letter']),
        tenure.policy_choice(policy, 'on_timeout', array['retry', 'fail', 'dead_letter']),
        coalesce((
            select '[' || string_agg(to_json(one.name)::text, ',' order by one.name collate "C") || ']'
            from (select distinct name from jsonb_array_elements_text(secret) name) one
        ), 'null'),
        coalesce(trunc((nullif(signals_max, 'null'))::numeric)::text, 'null'),
        tenure.policy_seconds(policy, 'timeouts.claimed_seconds', null, 0.001, year, true),
        tenure.policy_seconds(policy, 'timeouts.queued_seconds', null, 0.001, year, true),
        tenure.policy_seconds(policy, 'timeouts.running_seconds', 86400, 0.001, year, true));
end $$;

create function tenure.policy_of_body(body text) returns integer
language sql volatile
as $$
    select tenure.policy_number(json_build_object(
        'body', body,
        'lease_ms', round((given ->> 'lease_seconds')::numeric * 1000),
        'heartbeat_ms', round(coalesce((given ->> 'heartbeat_seconds')::numeric, (given ->> 'lease_seconds')::numeric / 3) * 1000),
        'queued_ms', round((given #>> '{timeouts,queued_seconds}')::numeric * 1000),
        'claimed_ms', round((given #>> '{timeouts,claimed_seconds}')::numeric * 1000),
        'running_ms', round((given #>> '{timeouts,running_seconds}')::numeric * 1000),
        'deadline_ms', round((given ->> 'deadline_seconds')::numeric * 1000)
    ))
    from cast(body as jsonb) given
$$;

-- Tags as they are stored: sorted by key. Null for none.
create function tenure.tags_text(tags jsonb) returns text
language plpgsql immutable strict
as $$
declare
    tag record;
begin
    perform tenure.require(jsonb_typeof(tags) = 'object', 'tags', 'must be an object of texts');
    for tag in select key, value from jsonb_each(tags) loop
        perform tenure.require_text(tag.key, 'tags', 500);
        perform tenure.require(tag.key <> 'tenure.deadline', 'tags.tenure.deadline', 'is set by the run that spawns a job');
        perform tenure.require(jsonb_typeof(tag.value) = 'string', 'tags.' || tag.key, 'must be text');
        perform tenure.require_text(tag.value #>> '{}', 'tags.' || tag.key, 500);
    end loop;
    return (
        select '{' || string_agg(to_json(one.key)::text || ':' || to_json(one.value)::text, ',' order by one.key collate "C") || '}'
        from jsonb_each_text(tags) one
    );
end $$;

-- The digest of an enqueue: of all set fields but the id. The same request of a client in Python has the same.
create function tenure.request_digest(facts jsonb, policy_body text, tags text) returns text
language sql immutable
as $$
    select tenure.content_digest('{' || string_agg(to_json(fact.key)::text || ':' || case fact.key
            when 'tags' then tags
            when 'priority' then fact.value
            else to_json(fact.value)::text
        end, ',' order by fact.key collate "C") || '}')
    from jsonb_each_text(jsonb_strip_nulls(facts) || jsonb_strip_nulls(jsonb_build_object(
        'tags', tags,
        'policy', replace(regexp_replace(policy_body, '"[a-z_]+":null,?', '', 'g'), ',}', '}')
    ))) fact
$$;

-- Enqueues a job in the caller's transaction, and returns its id. A repeated request id and a dedupe key of a live job return
-- the earlier one. The function that runs the job validates the payload when it runs.
-- SQLSTATE 22023: an argument does not fit; TN001: the request id was used with other arguments; TN004: a live job of another
-- kind has the dedupe key.
create function tenure.enqueue(
    kind text, payload jsonb default '{}', queue text default 'default', priority integer default 0,
    delay_seconds double precision default 0, at timestamptz default null, dedupe_key text default null, request_id text default null,
    correlation_id text default null, trace text default null, submitted_by text default null, tags jsonb default null,
    partition_key text default null, policy jsonb default '{}'
) returns uuid
language plpgsql volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    content text := tenure.content_text(payload, 'payload');
    body text := tenure.policy_body(coalesce(policy, '{}'));
    tag_text text := tenure.tags_text(tags);
    delay_ms bigint := case when delay_seconds between 0 and 366 * 86400 then round(delay_seconds * 1000) end;
    stored_key text := replace(replace(kind, '%', '%25'), ':', '%3A') || ':' || dedupe_key;
    facts jsonb := jsonb_build_object('kind', kind, 'payload', content, 'queue', queue, 'priority', priority,
        'dedupe_key', stored_key, 'request_id', request_id, 'correlation_id', correlation_id, 'trace', trace,
        'submitted_by', submitted_by, 'partition_key', partition_key);
    detail text;
    enqueued uuid;
begin
    perform tenure.require_name(kind, 'kind'), tenure.require_name(queue, 'queue');
    perform tenure.require(jsonb_typeof(payload) = 'object', 'payload', 'must be an object of arguments by name');
    perform tenure.require(priority between -32768 and 32767, 'priority', 'must lie between -32768 and 32767');
    perform tenure.require(delay_ms is not null, 'delay_seconds', 'must lie between 0 and a year');
    perform tenure.require(at is null or delay_ms = 0, 'at', 'and delay_seconds exclude each other; give one of them');
    perform tenure.require(at is null or (isfinite(at) and at between '0001-01-02Z' and '3000-12-31Z'), 'at',
        'must lie between the years 1 and 3000');
    perform tenure.require_text(given.value, given.key, 500)
    from jsonb_each_text(facts - '{kind,payload,queue,priority}'::text[]) given;
    detail := case
        when at is not null then format('{"due_at":"%s+00:00"}', regexp_replace(
            to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '\.000000$', ''))
        when delay_ms > 0 then format('{"delay_ms":%s}', delay_ms)
    end;
    select made.job_id into strict enqueued
    from tenure.enqueue_jobs(array[tenure.new_job_id()], array[kind], array[queue], array[priority::smallint], array[content],
        array[tenure.policy_of_body(body)], array[stored_key], array[request_id], array[correlation_id], array[trace],
        array[submitted_by], array[tag_text], array[partition_key], array[null]::uuid[], array[null]::uuid[], array[false],
        array[delay_ms], array[at], array[tenure.request_digest(facts, body, tag_text)], array[detail], array[null]::text[],
        array['client:' || session_user], 1::smallint) made;
    return enqueued;
end $$;

-- Sends a live job a signal in the caller's transaction, and returns its revision. A repeated request id sends nothing, and
-- returns that of the first.
-- SQLSTATE 22023: an argument does not fit; TN001: the request id was used with other arguments; TN005: there is no such job, or
-- it has ended; TN006: it was sent as many signals as it takes.
create function tenure.signal(job_id uuid, name text, payload jsonb default 'null', request_id text default null) returns integer
language plpgsql volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    writer_before text := tenure.writer();
    writer text;
    content text := tenure.content_text(payload, 'payload');
    request text := coalesce(request_id, gen_random_uuid()::text);
    detail text := '{"name":' || to_json(name)::text || '}';
    sent record;
    job tenure.jobs;
    written_at timestamptz;
    due timestamptz;
    queued_limit interval;
    signal_limit bigint;
begin
    perform tenure.require(name is not null, 'name', 'is missing'), tenure.require_text(name, 'name', 200),
        tenure.require_text(request_id, 'request_id', 500);
    select found.* into job from tenure.jobs found where found.id = job_id for no key update;
    if job.id is null then
        raise exception 'tenure: there is no job %', coalesce(job_id::text, 'null') using errcode = 'TN005';
    end if;
    select event.rev, event.type, event.digest, event.detail into sent
    from tenure.log event
    where event.job_id = job.id and event.request_id = request
    limit 1;
    if found then
        if (sent.type, sent.digest, sent.detail) is distinct from ('signalled', tenure.content_digest(content), detail) then
            raise exception 'tenure: request id % was used before with another body', request
                using errcode = 'TN001', detail = request;
        end if;
        return sent.rev;
    end if;
    if tenure.is_terminal(job.status) then
        raise exception 'tenure: job % is %, so it cannot be signalled', job.id, job.status using errcode = 'TN005';
    end if;
    written_at := greatest(tenure.clock(), job.updated_at);
    due := case when job.status = 'waiting' then least(coalesce(job.due_at, written_at), written_at) else job.due_at end;
    select stored.queued_ms * interval '1 millisecond', coalesce((stored.body::jsonb ->> 'signals_max')::bigint, 10000)
        into queued_limit, signal_limit
    from tenure.policies stored
    where stored.id = job.policy_id;
    if (select count(*) from tenure.signals signal where signal.job_id = job.id) >= signal_limit then
        raise exception 'tenure: job % was sent % signals, which is its limit, so this one was not stored', job.id, signal_limit
            using errcode = 'TN006', hint = 'Let the run go on as a new one with run.continue_as, or declare a greater signals_max.';
    end if;
    writer := set_config('tenure.writer', 'store', true);
    insert into tenure.events (tx, job_id, at, rev, attempt, version, commits, type, from_status, to_status, actor, request_id,
        digest, detail)
    values (tenure.place_after(job.id, job.rev), job.id, written_at, job.rev + 1, job.attempt, 1, false, 'signalled',
        job.status, job.status, 'client:' || session_user, request, tenure.content_digest(content), detail);
    insert into tenure.signals (job_id, rev, name, payload, at) values (job.id, job.rev + 1, name, content, written_at);
    update tenure.jobs changed
    set previous_status = job.status,
        rev = job.rev + 1,
        transition_count = 1,
        updated_at = written_at,
        signal_rev = job.rev + 1,
        due_at = due,
        timeout_at = case
            when job.status in ('claimed', 'running') then job.timeout_at
            -- A job that only undoes its steps has no timeout, and one that is not due none but its deadline.
            when job.ends_as is null then least(job.timeout_at, greatest(due, written_at)
                + case when due is not null then queued_limit end)
        end
    where changed.id = job.id;
    writer := set_config('tenure.writer', writer_before, true);
    return job.rev + 1;
end $$;

revoke execute on function tenure.enqueue, tenure.signal from public;
