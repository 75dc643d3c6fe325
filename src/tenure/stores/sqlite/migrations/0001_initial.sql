-- Jobs, their log, and the tables of all other parts. Every name has the prefix tenure_, since the file may also hold
-- the user's tables. Times are microseconds since 1970 in UTC, ids are UUIDs as text, booleans are 0 and 1.
-- min_code_version: 1
--
-- The guards repeat the lifecycle's rules, so that they also hold for SQL written by hand. On the hot path, lists of
-- statuses are chains of `is`, and predicates of indexes test for null: SQLite builds a table for an `in` of more than
-- two values, each time that it runs a statement.

-- The migrations that were applied to this file.
create table tenure_migrations (
    number integer primary key,
    name text not null,
    checksum text not null,
    applied_at integer not null
);

-- The oldest schema version that code must know to use this file (min_code_version).
create table tenure_meta (
    name text not null primary key,
    value integer not null
) without rowid;

insert into tenure_meta (name, value) values ('min_code_version', 1);

-- The component that writes: null, 'store', 'retention', 'erasure' or 'import'. The store sets it inside a transaction
-- and clears it before the commit, so that no other connection ever sees it set.
create table tenure_writer (
    only integer primary key,
    writer text,

    constraint "tenure: tenure_writer has one row" check (only = 1),
    constraint "tenure: the writer is the store, retention, erasure or an import" check (
        writer is null or writer is 'store' or writer is 'retention' or writer is 'erasure' or writer is 'import'
    )
);

insert into tenure_writer (only, writer) values (1, null);

-- Retry, timeout and recovery policies. The id is a hash of the body, so that every process computes the same one.
create table tenure_policies (
    id integer primary key,
    body text not null unique
);

-- The jobs: the projection of the log. Large columns come last, so that the others are read without them.
create table tenure_jobs (
    id text not null primary key,
    kind text not null,
    policy_id integer not null,
    queue text not null,
    priority integer not null,
    dedupe_key text,
    request_id text,
    correlation_id text,
    trace text,
    submitted_by text,
    partition_key text,
    parent_id text,
    redrive_of text,
    awaited integer not null default 0,
    status text not null,
    rev integer not null,
    created_at integer not null,
    updated_at integer not null,
    attempt integer not null default 0,
    failures integer not null default 0,
    losses integer not null default 0,
    lost integer not null default 0,
    due_at integer,
    owner text,
    token text,
    lease_expires_at integer,
    heartbeat_deadline_at integer,
    timeout_at integer,
    started_at integer,
    finished_at integer,
    committed_at integer,
    cancel_reason text,
    signal_rev integer not null default 0,
    waiting_for text,
    children_max integer,
    pinned_version text,
    ends_as text,
    ends_because text,
    failures_before_undo integer not null default 0,
    compensated_at integer,
    progress integer,
    erased_at integer,
    transition_count integer not null default 1,
    previous_status text,
    tags text,
    progress_message text,
    reason text,
    committed_result text,
    result text,
    partial_result text,
    error text,
    last_error text,
    payload text not null,

    constraint "tenure: the status is one of the eleven" check (
        case status
            when 'queued' then 1
            when 'claimed' then 1
            when 'running' then 1
            when 'waiting' then 1
            when 'retry' then 1
            when 'stalled' then 1
            when 'succeeded' then 1
            when 'failed' then 1
            when 'cancelled' then 1
            when 'halted' then 1
            when 'dead_lettered' then 1
            else 0
        end
    ),
    constraint "tenure: a claimed or running job has an owner, a lease and its token, and no other has" check (
        case when status is 'claimed' or status is 'running'
            then owner is not null and token is not null
                and lease_expires_at is not null and heartbeat_deadline_at is not null
            else owner is null and token is null
                and lease_expires_at is null and heartbeat_deadline_at is null
        end
    ),
    constraint "tenure: a job has finished when it is terminal, and only then" check (
        (finished_at is not null) = (
            status is 'succeeded' or status is 'failed' or status is 'cancelled'
            or status is 'halted' or status is 'dead_lettered'
        )
    ),
    constraint "tenure: a succeeded job has a result, and no other has" check (
        case when status is 'succeeded' then result is not null or erased_at is not null else result is null end
    ),
    constraint "tenure: a failed job has an error, and no other has" check (
        case when status is 'failed' then error is not null or erased_at is not null else error is null end
    ),
    constraint "tenure: a halted job has its partial result, and no other has" check (
        case when status is 'halted'
            then partial_result is not null or erased_at is not null
            else partial_result is null
        end
    ),
    constraint "tenure: a halted, cancelled or dead-lettered job has a reason, and no other has" check (
        (reason is not null) = (status is 'halted' or status is 'cancelled' or status is 'dead_lettered')
    ),
    constraint "tenure: a succeeded job is committed, and a committed job that ended has succeeded" check (
        case when status is 'succeeded'
            then committed_at is not null
            else committed_at is null or finished_at is null
        end
    ),
    constraint "tenure: only a committed job that has not ended keeps a committed result" check (
        committed_result is null or (committed_at is not null and finished_at is null)
    ),
    constraint "tenure: failures do not exceed attempts, and an attempt is counted by its claim" check (
        0 <= losses and losses <= failures and failures <= attempt
        and failures_before_undo between 0 and failures
        and (attempt > 0 or not (status is 'claimed' or status is 'running'))
    ),
    constraint "tenure: revisions count from 1, by one to four at a time" check (rev >= 1 and transition_count between 1 and 4),
    constraint "tenure: created_at, started_at, finished_at and updated_at are in order" check (
        created_at <= updated_at
        and (started_at is null or (created_at <= started_at and started_at <= updated_at))
        and (finished_at is null or (ifnull(started_at, created_at) <= finished_at and finished_at <= updated_at))
    ),
    constraint "tenure: a waiting job has what it waits for, and no other has" check (
        case waiting_for
            when 'time' then status is 'waiting' and due_at is not null
            when 'signal' then status is 'waiting'
            when 'children' then status is 'waiting'
            when 'code' then status is 'waiting'
            else waiting_for is null and status is not 'waiting'
        end
    ),
    constraint "tenure: only a job that waits for children has a number of them" check (
        children_max is null or (waiting_for is 'children' and children_max >= 0)
    ),
    constraint "tenure: only a job that was claimed is pinned to a version" check (
        pinned_version is null or attempt > 0
    ),
    constraint "tenure: the end that follows is one of three, and has a cause" check (
        case when ends_as is null
            then ends_because is null and compensated_at is null and failures_before_undo = 0
            else ends_because is not null and (ends_as is 'failed' or ends_as is 'cancelled' or ends_as is 'dead_lettered')
        end
    ),
    constraint "tenure: a compensated job ends as was recorded" check (
        compensated_at is null or finished_at is null or status is ends_as
    ),
    constraint "tenure: an awaited job has a parent" check (awaited is 0 or parent_id is not null),
    constraint "tenure: a signal's revision is one of the job's" check (signal_rev between 0 and rev),
    constraint "tenure: times are integers within the years 1 to 9999" check (
        ifnull(due_at between -62135510400000000 and 253402128000000000, 1) and ifnull(timeout_at between -62135510400000000 and 253402128000000000, 1)
        and ifnull(lease_expires_at between -62135510400000000 and 253402128000000000, 1)
        and ifnull(heartbeat_deadline_at between -62135510400000000 and 253402128000000000, 1)
        and ifnull(updated_at between -62135510400000000 and 253402128000000000, 1)
    ),
    constraint "tenure: keys and content are text" check (
        typeof(kind) is 'text' and typeof(queue) is 'text' and typeof(payload) is 'text'
        and typeof(dedupe_key) is not 'blob' and typeof(request_id) is not 'blob'
        and typeof(correlation_id) is not 'blob' and typeof(trace) is not 'blob'
        and typeof(submitted_by) is not 'blob' and typeof(partition_key) is not 'blob' and typeof(tags) is not 'blob'
    ),
    constraint "tenure: results, errors and messages are text" check (
        typeof(result) is not 'blob' and typeof(committed_result) is not 'blob' and typeof(error) is not 'blob'
        and typeof(last_error) is not 'blob' and typeof(partial_result) is not 'blob' and typeof(owner) is not 'blob'
        and typeof(reason) is not 'blob' and typeof(progress_message) is not 'blob'
    ),
    constraint "tenure: progress is 0 to 100" check (progress is null or progress between 0 and 100),
    constraint "tenure: flags are 0 or 1" check (lost between 0 and 1 and awaited between 0 and 1)
);

-- Jobs without a lease that have not ended: queued, retry, waiting or stalled.
create index tenure_jobs_ready on tenure_jobs (queue, priority desc, due_at, id)
    where owner is null and finished_at is null and pinned_version is null;
-- Jobs that only workers with one version of the code may claim.
create index tenure_jobs_pinned on tenure_jobs (pinned_version, queue, priority desc, due_at, id)
    where owner is null and finished_at is null and pinned_version is not null;
create index tenure_jobs_leased on tenure_jobs (queue, id)
    where owner is not null or status = 'stalled';
-- Only jobs with a partition key: limits per partition search it for jobs that may be claimed.
create index tenure_jobs_partitioned on tenure_jobs (queue, partition_key, priority desc, due_at, id)
    where owner is null and finished_at is null and pinned_version is null and partition_key is not null;
create index tenure_jobs_unleased_timeout on tenure_jobs (timeout_at)
    where owner is null and finished_at is null and timeout_at is not null;
create unique index tenure_jobs_dedupe on tenure_jobs (dedupe_key)
    where dedupe_key is not null and finished_at is null;
create unique index tenure_jobs_request on tenure_jobs (request_id)
    where request_id is not null;
create index tenure_jobs_correlation on tenure_jobs (correlation_id, id)
    where correlation_id is not null;
-- Retention reads it: finished jobs of a status and kind, the oldest first.
create index tenure_jobs_finished on tenure_jobs (status, kind, finished_at)
    where finished_at is not null;
-- Listings by a status in which few jobs end: among millions that succeeded these are found at once.
create index tenure_jobs_unsuccessful on tenure_jobs (status, id)
    where status in ('failed', 'cancelled', 'halted', 'dead_lettered');
create index tenure_jobs_children on tenure_jobs (parent_id, id) where parent_id is not null;
-- Whether enough awaited children have ended is read from those that are live, of which there are few.
create index tenure_jobs_awaited on tenure_jobs (parent_id) where awaited = 1 and finished_at is null;
-- Recovery reads it: jobs that wait for children.
create index tenure_jobs_awaiting on tenure_jobs (id) where children_max is not null;

-- The log, in the order of commits: there is one writer, and AUTOINCREMENT never uses a number twice. A claim with its
-- start is one row: type claimed, from the old status to running, with the revision of the start. Read tenure_log, which
-- has a row for each event and leaves nothing out.
create table tenure_events (
    position integer primary key autoincrement,
    job_id text not null,
    rev integer not null,
    type text not null,
    from_status text,
    to_status text not null,
    at integer not null,
    attempt integer not null,
    actor text not null,
    request_id text not null,
    cause text,
    detail text,
    digest text,
    until_at integer,
    commits integer not null default 0,
    version integer not null,
    steps text,

    constraint "tenure: the lifecycle has no such event between these statuses" check (
        (from_status is null) = (type is 'enqueued')
        and case type
            when 'enqueued' then to_status is 'queued'
            when 'claimed' then (to_status is 'running' and rev > 2 or to_status is 'claimed') and (
                from_status is 'queued' or from_status is 'retry'
                or from_status is 'waiting' or from_status is 'stalled'
            )
            when 'started' then from_status is 'claimed' and to_status is 'running'
            when 'succeeded' then to_status is 'succeeded' and (from_status is 'running' or from_status is 'stalled')
            when 'heartbeat' then to_status is from_status and (from_status is 'claimed' or from_status is 'running')
            when 'progress' then to_status is from_status and from_status is 'running'
            when 'acked' then to_status is from_status and from_status is 'claimed'
            when 'committed' then to_status is from_status and from_status is 'running'
            when 'retry_scheduled' then from_status is 'running' and to_status is 'retry'
            when 'failed' then to_status is 'failed'
                and from_status in ('queued', 'claimed', 'running', 'waiting', 'retry', 'stalled')
            when 'halted' then from_status is 'running' and to_status is 'halted'
            when 'suspended' then from_status is 'running' and to_status is 'waiting'
            when 'signalled' then to_status is from_status
                and from_status in ('queued', 'claimed', 'running', 'waiting', 'retry', 'stalled')
            when 'woken' then to_status is from_status
                and from_status in ('queued', 'claimed', 'running', 'waiting', 'retry', 'stalled')
            when 'unwinding' then to_status is from_status
                and from_status in ('queued', 'retry', 'waiting', 'stalled')
            when 'compensated' then to_status is from_status and from_status is 'running'
            when 'released' then to_status is 'stalled' and (from_status is 'claimed' or from_status is 'running')
            when 'cancel_requested' then to_status is from_status
                and from_status in ('queued', 'claimed', 'running', 'waiting', 'retry', 'stalled')
            when 'cancelled' then to_status is 'cancelled'
                and from_status in ('queued', 'claimed', 'running', 'waiting', 'retry', 'stalled')
            when 'stalled' then to_status is 'stalled' and (from_status is 'claimed' or from_status is 'running')
            when 'requeued' then from_status is 'stalled' and to_status is 'queued'
            when 'dead_lettered' then to_status is 'dead_lettered'
                and from_status in ('queued', 'claimed', 'running', 'waiting', 'retry', 'stalled')
            else 0
        end
    ),
    constraint "tenure: only committed and succeeded events commit" check (
        commits is 0 or (commits is 1 and (type is 'committed' or type is 'succeeded'))
    ),
    constraint "tenure: a job's first event is enqueued, and no later one" check (
        (rev = 1) = (type is 'enqueued') and rev >= 1
    ),
    constraint "tenure: positions count from 1" check (position >= 1)
);

create unique index tenure_events_job on tenure_events (job_id, rev);
create unique index tenure_events_one_commit on tenure_events (job_id) where commits = 1;
create index tenure_events_type on tenure_events (type, at);
-- Retention reads it: verbose details that were not blanked yet.
create index tenure_events_verbose on tenure_events (at, position) where type = 'progress' and detail is not null;

-- The log: one row for each event, with nothing left out. Rows of events leave out their usual cause. The last event of a
-- row has an even position; a claim that is in one row with its start has the odd one before it.
create view tenure_log as
with single (
    position, job_id, rev, type, from_status, to_status, at, attempt, actor, request_id, cause, detail, digest, until_at,
    commits, version, steps
) as (
    select
        2 * position, job_id, rev, type, from_status, to_status, at, attempt, actor, request_id, cause, detail, digest,
        until_at, commits, version, steps
    from tenure_events
    where not (type = 'claimed' and to_status = 'running')
    union all
    select
        2 * position - 1, job_id, rev - 1, type, from_status, 'claimed', at, attempt, actor, request_id, cause, detail,
        digest, until_at, commits, version, steps
    from tenure_events
    where type = 'claimed' and to_status = 'running'
    union all
    select
        2 * position, job_id, rev, 'started', 'claimed', to_status, at, attempt, actor, request_id, null, null, null,
        null, commits, version, steps
    from tenure_events
    where type = 'claimed' and to_status = 'running'
)
select
    event.position, event.job_id, event.rev, event.type, event.from_status, event.to_status, event.at, event.attempt,
    event.actor, event.request_id,
    coalesce(event.cause, case event.type
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
    end) as cause,
    event.detail, event.digest, event.until_at, event.commits, event.version, event.steps
from single event;

-- Claims that took jobs, one row each, so that a repeated claim returns the same jobs.
create table tenure_claims (
    request_id text not null primary key,
    body text not null,
    job_ids text not null,
    at integer not null
) without rowid;

-- Enqueue requests that found their dedupe key in use, with the job that has it, so that a repeated request returns
-- the same job.
create table tenure_deduplicated_requests (
    request_id text not null primary key,
    digest text not null,
    detail text,
    job_id text not null,
    at integer not null
) without rowid;

create index tenure_deduplicated_requests_job on tenure_deduplicated_requests (job_id);

create table tenure_signals (
    job_id text not null,
    rev integer not null,
    name text not null,
    payload text not null,
    at integer not null,
    primary key (job_id, rev)
) without rowid;

create table tenure_dead_letters (
    job_id text not null primary key,
    reason_code text not null check (
        reason_code in (
            'parse_error', 'validation_failed', 'dependency_unavailable', 'timeout', 'exhausted_retries',
            'policy_violation', 'infrastructure_failure', 'compensation_failed'
        )
    ),
    stage text not null check (stage in ('fetch', 'input', 'exec', 'output', 'commit')),
    last_error text not null,
    attempts integer not null,
    at integer not null,
    last_owner text,
    last_lease_expires_at integer,
    correlation_id text not null,
    handled_at integer,
    handled_as text,
    constraint "tenure: a handled dead letter has handled_at and handled_as" check (
        case when handled_at is null then handled_as is null else ifnull(handled_as in ('redriven', 'discarded'), 0) end
    )
) without rowid;

create table tenure_artifacts (
    job_id text not null,
    name text not null,
    attempt integer not null,
    media_type text not null,
    body blob not null,
    bytes integer not null,
    at integer not null,
    primary key (job_id, name)
);

-- Checkpoints of workflows. The first writer of a key wins. `number` is the order of completion. The digest covers the row
-- without its times; it is a decimal integer of up to 78 digits. Results of any length stay in the row: SQLite keeps long
-- ones on overflow pages.
create table tenure_steps (
    number integer primary key,
    job_id text not null,
    key text not null,
    kind text not null,
    name text not null,
    branch text not null,
    ordinal integer not null,
    attempt integer not null,
    arguments_digest text,
    status text not null,
    code_version text,
    started_at integer not null,
    finished_at integer not null,
    child_id text,
    signal_rev integer,
    content_digest text not null,
    digest text not null,
    spend text,
    undo text,
    result text,
    error text,
    constraint "tenure: a step is one of seven kinds" check (
        kind in ('step', 'sleep', 'wait', 'spawn', 'decision', 'patch', 'undo')
    ),
    constraint "tenure: a step that succeeded has no error, and one that failed no result" check (
        case status when 'succeeded' then error is null when 'failed' then result is null else 0 end
    ),
    constraint "tenure: ordinals count from 0, attempts and revisions from 1" check (
        ordinal >= 0 and attempt >= 1 and (signal_rev is null or signal_rev >= 1) and digest not glob '*[^0-9]*'
    ),
    constraint "tenure: times are integers within the years 1 to 9999" check (
        started_at <= finished_at and started_at >= -62135510400000000 and finished_at <= 253402128000000000
    ),
    constraint "tenure: a step is text" check (
        typeof(key) is 'text' and typeof(name) is 'text' and typeof(branch) is 'text' and typeof(digest) is 'text'
        and typeof(result) is not 'blob' and typeof(error) is not 'blob' and typeof(undo) is not 'blob'
        and typeof(spend) is not 'blob' and typeof(child_id) is not 'blob'
    )
);

create unique index tenure_steps_key on tenure_steps (job_id, key);

-- What a run and its children may spend, and have spent, in millionths of each unit. Written when the first call of a run
-- reserves.
create table tenure_budgets (
    root_id text not null,
    unit text not null,
    limit_amount integer not null,
    spent integer not null,
    on_lost_spend text not null,
    primary key (root_id, unit),
    constraint "tenure: amounts of a budget are not negative" check (
        typeof(limit_amount) is 'integer' and typeof(spent) is 'integer' and limit_amount >= 0 and spent >= 0
    ),
    constraint "tenure: lost spend is charged or released" check (on_lost_spend in ('charge', 'release'))
) without rowid;

-- What calls in progress may spend at most. The attempt identifies the lease; a reservation of an earlier one is lost.
create table tenure_reservations (
    root_id text not null,
    unit text not null,
    job_id text not null,
    attempt integer not null,
    key text not null,
    amount integer not null,
    primary key (root_id, unit, job_id, attempt, key),
    constraint "tenure: a reservation has an amount and an attempt" check (
        typeof(amount) is 'integer' and typeof(attempt) is 'integer' and amount > 0 and attempt >= 1
    )
) without rowid;

-- The outbox. A message is stored once. There is one writer, so the order of sequences is the order of commits, and
-- AUTOINCREMENT never uses a number twice.
create table tenure_streams (
    aggregate text not null primary key,
    at integer not null,
    constraint "tenure: times are integers within the years 1 to 9999" check (at between -62135510400000000 and 253402128000000000)
) without rowid;

create table tenure_outbox (
    sequence integer primary key autoincrement,
    id text not null unique,
    aggregate text,
    topic text not null,
    body text not null,
    headers text,
    job_id text,
    correlation_id text not null,
    trace text,
    at integer not null,
    endpoint_count integer not null default 0 check (endpoint_count >= 0),
    constraint "tenure: an aggregate has a name" check (aggregate is not ''),
    constraint "tenure: a message is text" check (
        typeof(id) is 'text' and typeof(topic) is 'text' and typeof(body) is 'text' and typeof(aggregate) is not 'blob'
    )
);

create index tenure_outbox_aggregate_sequence on tenure_outbox (aggregate, sequence) where aggregate is not null;
create index tenure_outbox_job on tenure_outbox (job_id) where job_id is not null;
create index tenure_outbox_at on tenure_outbox (at);
-- Messages that no endpoint subscribes to.
create index tenure_outbox_unserved on tenure_outbox (sequence) where endpoint_count = 0;

-- Where messages are delivered to. `config` has no secret, only references to secrets.
create table tenure_endpoints (
    name text not null primary key,
    kind text not null,
    config text,
    source text not null check (source in ('code', 'operator')),
    created_at integer not null,
    updated_at integer not null,
    seen_at integer,
    failing_since_at integer,
    warned_at integer,
    throttled_until_at integer,
    disabled_at integer,
    disabled_because text,
    constraint "tenure: a disabled endpoint has a reason" check ((disabled_at is null) = (disabled_because is null)),
    constraint "tenure: the configuration is a JSON object" check (
        config is null or case when json_valid(config) then json_type(config) is 'object' else 0 end
    ),
    constraint "tenure: times are integers within the years 1 to 9999" check (
        created_at between -62135510400000000 and 253402128000000000
        and updated_at between -62135510400000000 and 253402128000000000
        and ifnull(seen_at between -62135510400000000 and 253402128000000000, 1)
        and ifnull(failing_since_at between -62135510400000000 and 253402128000000000, 1)
        and ifnull(throttled_until_at between -62135510400000000 and 253402128000000000, 1)
        and ifnull(disabled_at between -62135510400000000 and 253402128000000000, 1)
    )
) without rowid;

-- Which messages an endpoint receives: by topic, or by the beginning of topics (`mail.*`, `*`), and by fields of the body.
create table tenure_subscriptions (
    endpoint text not null references tenure_endpoints (name) on delete cascade,
    topic text not null,
    filters text,
    block_seconds real check (block_seconds >= 0 and block_seconds < 1e9),
    updated_at integer not null,
    primary key (endpoint, topic),
    constraint "tenure: filters are a JSON object" check (
        filters is null or case when json_valid(filters) then json_type(filters) is 'object' else 0 end
    ),
    constraint "tenure: times are integers within the years 1 to 9999" check (updated_at between -62135510400000000 and 253402128000000000)
) without rowid;

-- What an endpoint has yet to receive: the messages of an aggregate with a sequence above `position`, up to
-- `last_sequence`; or one message, `only_sequence`, that has no aggregate or is sent once more. A row that is leased has a
-- token, and is due when its lease ends.
create table tenure_pending (
    endpoint text not null,
    aggregate text not null,
    only_sequence integer not null,
    position integer not null,
    last_sequence integer not null,
    due_at integer not null,
    attempts integer not null default 0 check (attempts >= 0),
    head_at integer,
    owner text,
    token text,
    primary key (endpoint, aggregate, only_sequence),
    constraint "tenure: a row is of an aggregate or of one message" check (
        (aggregate = '') = (only_sequence > 0) and only_sequence >= 0
    ),
    constraint "tenure: a lease has an owner and a token" check ((owner is null) = (token is null)),
    constraint "tenure: times are integers within the years 1 to 9999" check (
        due_at between -62135510400000000 and 253402128000000000
        and ifnull(head_at between -62135510400000000 and 253402128000000000, 1)
    )
) without rowid;

create index tenure_pending_due on tenure_pending (endpoint, due_at);

-- Each attempt to deliver a message to an endpoint. A dead one is the last: the message was not delivered.
create table tenure_deliveries (
    number integer primary key autoincrement,
    endpoint text not null,
    aggregate text not null,
    sequence integer not null,
    attempt integer not null check (attempt >= 1),
    at integer not null,
    outcome text not null check (outcome in ('delivered', 'failed', 'dead')),
    status integer,
    duration_ms integer not null check (duration_ms >= 0),
    error text,
    handled_at integer,
    handled_as text,
    constraint "tenure: a delivery that failed has an error" check ((outcome = 'delivered') = (error is null)),
    constraint "tenure: only a dead delivery is handled" check (
        (handled_at is null) = (handled_as is null) and (handled_at is null or outcome = 'dead')
        and (handled_as is null or handled_as in ('redriven', 'discarded'))
    )
);

create index tenure_deliveries_stream on tenure_deliveries (endpoint, aggregate, sequence);
create index tenure_deliveries_message on tenure_deliveries (sequence);
create index tenure_deliveries_delivered on tenure_deliveries (at) where outcome = 'delivered';
create index tenure_deliveries_dead on tenure_deliveries (endpoint, number) where outcome = 'dead' and handled_at is null;

-- How far a role has read the log, under a lease.
create table tenure_log_cursors (
    name text not null primary key,
    position text,
    owner text,
    token text,
    lease_expires_at integer,
    updated_at integer not null,
    constraint "tenure: a lease has an owner, a token and an end" check (
        (owner is null) = (token is null) and (owner is null) = (lease_expires_at is null)
    ),
    constraint "tenure: times are integers within the years 1 to 9999" check (
        updated_at between -62135510400000000 and 253402128000000000
        and ifnull(lease_expires_at between -62135510400000000 and 253402128000000000, 1)
    )
) without rowid;

-- Queues that are paused or have limits.
create table tenure_queues (
    name text not null primary key,
    paused_at integer,
    concurrency_max integer check (concurrency_max > 0),
    key_concurrency_max integer check (key_concurrency_max > 0),
    rate_count integer check (rate_count > 0),
    rate_seconds real check (rate_seconds > 0 and rate_seconds < 1e9),
    key_rate_count integer check (key_rate_count > 0),
    key_rate_seconds real check (key_rate_seconds > 0 and key_rate_seconds < 1e9),
    fair integer not null default 0 check (fair between 0 and 1),
    last_key text not null default '',
    usage text,
    updated_at integer not null,
    constraint "tenure: a rate has a count and a time" check (
        (rate_count is null) = (rate_seconds is null) and (key_rate_count is null) = (key_rate_seconds is null)
    ),
    constraint "tenure: usage is a JSON object" check (
        usage is null or case when json_valid(usage) then json_type(usage) is 'object' else 0 end
    ),
    constraint "tenure: times are integers within the years 1 to 9999" check (
        ifnull(paused_at between -62135510400000000 and 253402128000000000, 1) and updated_at between -62135510400000000 and 253402128000000000
    )
) without rowid;

-- The rate usage of each partition of a queue, until it expires.
create table tenure_rate_usage (
    queue text not null,
    key text not null,
    usage text not null,
    until_at integer not null,
    primary key (queue, key),
    constraint "tenure: usage is a JSON object" check (
        case when json_valid(usage) then json_type(usage) is 'object' else 0 end
    ),
    constraint "tenure: times are integers within the years 1 to 9999" check (until_at between -62135510400000000 and 253402128000000000)
) without rowid;

create index tenure_rate_usage_until on tenure_rate_usage (queue, until_at);

-- Schedules. A firing advances the row and inserts its jobs in one transaction.
create table tenure_schedules (
    name text not null primary key,
    rev integer not null check (rev > 0),
    kind text not null,
    queue text not null,
    priority integer not null,
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
    grace_seconds real not null check (grace_seconds >= 0 and grace_seconds < 1e9),
    source text not null check (source in ('code', 'operator')),
    paused_at integer,
    next_at integer,
    last_at integer,
    updated_at integer not null,
    constraint schedules_forward check (next_at > last_at),
    constraint "tenure: tags are a JSON object" check (
        tags is null or case when json_valid(tags) then json_type(tags) is 'object' else 0 end
    ),
    constraint "tenure: times are integers within the years 1 to 9999" check (
        ifnull(next_at between -62135510400000000 and 253402128000000000, 1) and ifnull(last_at between -62135510400000000 and 253402128000000000, 1)
        and ifnull(paused_at between -62135510400000000 and 253402128000000000, 1) and updated_at between -62135510400000000 and 253402128000000000
    ),
    constraint "tenure: a schedule is text" check (
        typeof(name) is 'text' and typeof(kind) is 'text' and typeof(queue) is 'text' and typeof(payload) is 'text'
        and typeof(cron) is 'text' and typeof(timezone) is 'text'
        and typeof(dedupe_key) is not 'blob' and typeof(correlation_id) is not 'blob'
        and typeof(submitted_by) is not 'blob' and typeof(partition_key) is not 'blob'
    )
) without rowid;

create index tenure_schedules_next on tenure_schedules (next_at, name) where next_at is not null and paused_at is null;

create table tenure_workers (
    id text not null primary key,
    host text not null,
    pid integer not null,
    version text not null,
    queues text not null,
    kinds text not null,
    concurrency integer not null,
    prunes integer not null default 0 check (prunes between 0 and 1),
    started_at integer not null,
    seen_at integer not null,
    stopped_at integer,
    constraint "tenure: queues and kinds are JSON lists" check (
        case when json_valid(queues) and json_valid(kinds)
            then json_type(queues) is 'array' and json_type(kinds) is 'array' else 0 end
    ),
    constraint "tenure: times are integers within the years 1 to 9999" check (
        started_at between -62135510400000000 and 253402128000000000
        and seen_at between -62135510400000000 and 253402128000000000
        and ifnull(stopped_at between -62135510400000000 and 253402128000000000, 1)
    )
) without rowid;

create table tenure_operator_log (
    id integer primary key autoincrement,
    at integer not null,
    actor text not null,
    action text not null,
    job_id text,
    detail text,
    published_at integer
);

-- What the event publisher has yet to publish.
create index tenure_operator_log_unpublished on tenure_operator_log (id) where published_at is null;

-- One row per attempt, derived from the log.
create view tenure_executions as
select
    claim.job_id || '/' || claim.attempt as exec_id,
    claim.job_id,
    claim.attempt,
    substr(claim.actor, instr(claim.actor, ':') + 1) as lease_owner,
    (
        select renewal.until_at
        from tenure_events renewal
        where renewal.job_id = claim.job_id
            and renewal.attempt = claim.attempt
            and renewal.type in ('claimed', 'heartbeat')
            and renewal.until_at is not null
        order by renewal.rev desc
        limit 1
    ) as lease_expires_at,
    case
        when done.rev is not null then 'done'
        when mark.rev is not null then 'committed'
        when ending.rev is not null then 'aborted'
        when claim.to_status = 'running' or start.rev is not null then 'in_progress'
        else 'leased'
    end as status,
    claim.at as leased_at,
    case when claim.to_status = 'running' then claim.at else start.at end as started_at,
    case when done.rev is not null then done.at when mark.rev is null then ending.at end as finished_at,
    case when done.rev is null and mark.rev is null then ending.cause end as cause
from tenure_events claim
left join tenure_events start
    on start.job_id = claim.job_id and start.attempt = claim.attempt and start.type = 'started'
left join tenure_events mark
    on mark.job_id = claim.job_id and mark.attempt = claim.attempt and mark.type = 'committed'
left join tenure_events done
    on done.job_id = claim.job_id and done.attempt = claim.attempt and done.type = 'succeeded'
left join tenure_log ending
    on ending.job_id = claim.job_id
    and ending.attempt = claim.attempt
    and ending.from_status in ('claimed', 'running')
    and ending.to_status not in ('claimed', 'running')
where claim.type = 'claimed';

-- `insert or replace` and `update or replace` delete conflicting rows without firing delete triggers. So the triggers
-- of each table look for such rows themselves. A row can also conflict by its rowid, which SQLite also knows as oid and
-- _rowid_, and which `update of` does not cover under these names.

-- tenure_writer always has exactly one row.
create trigger tenure_writer_insert before insert on tenure_writer
begin
    select raise(abort, 'tenure: tenure_writer keeps its one row; nothing replaces it');
end;

create trigger tenure_writer_delete before delete on tenure_writer
begin
    select raise(abort, 'tenure: tenure_writer keeps its one row; without it no write is allowed');
end;

-- A schedule only moves forward.
create trigger tenure_schedules_change before update on tenure_schedules
when new.rev <> old.rev + 1 or new.name <> old.name or new.last_at < old.last_at
    or (old.last_at is not null and new.last_at is null)
begin
    select raise(abort, 'tenure: a schedule changes by one revision, and its due times do not come again');
end;

create trigger tenure_writer_import before update on tenure_writer
when new.writer is 'import' and (exists (select 1 from tenure_jobs) or exists (select 1 from tenure_events))
begin
    select raise(abort, 'tenure: only an empty database can be imported into');
end;

-- A job begins with its enqueued event. An imported job is inserted in its last state, after the whole log that leads
-- to it.
create trigger tenure_jobs_insert before insert on tenure_jobs
begin
    select case
        when (new.rev <> 1 or new.status is not 'queued' or new.attempt <> 0 or new.transition_count <> 1 or new.previous_status is not null)
            and (select writer from tenure_writer) is not 'import'
            then raise(abort, 'tenure: a job begins as queued, at revision 1 and attempt 0')
        when (new.erased_at is not null or new.committed_at is not null or new.failures <> 0 or new.signal_rev <> 0)
            and (select writer from tenure_writer) is not 'import'
            then raise(abort, 'tenure: a job begins without failures, commit and erasure')
        when (new.rev <> 1 or new.status is not 'queued' or new.attempt <> 0) and new.rev is not (
            select case when max(link.rev) = new.rev then sum(
                link.from_status is previous.to_status
                and link.attempt = (link.type = 'claimed') + ifnull(previous.attempt, 0)
                and (link.type in ('signalled', 'woken') or link.rev <> new.signal_rev)
                and (link.type not in ('signalled', 'woken') or link.rev <= new.signal_rev)
                and (
                    link.rev < new.rev
                    or (link.to_status = new.status and link.at = new.updated_at and link.attempt = new.attempt)
                )
            ) end
            from tenure_events link
            left join tenure_events previous on previous.job_id = link.job_id and previous.rev = link.rev - 1
            where link.job_id = new.id
        )
            then raise(abort, 'tenure: an imported job has its whole log; this one does not lead to its revision')
        when new.status is 'dead_lettered' and not exists (select 1 from tenure_dead_letters where job_id = new.id)
            then raise(abort, 'tenure: a dead-lettered job is imported together with its dead letter')
        when not exists (
            select 1
            from tenure_events
            where job_id = new.id and rev = 1 and at = new.created_at
        )
            then raise(abort, 'tenure: a job is added together with its enqueued event, and only the store does that')
        when exists (select 1 from tenure_jobs where id = new.id)
            or exists (select 1 from tenure_jobs where rowid = new.rowid)
            then raise(abort, 'tenure: there is a job with this id, and nothing replaces it')
        when new.request_id is not null and exists (select 1 from tenure_jobs where request_id = new.request_id)
            then raise(abort, 'tenure: there is a job with this request id, and nothing replaces it')
        when new.dedupe_key is not null and exists (
            select 1
            from tenure_jobs
            where dedupe_key = new.dedupe_key and finished_at is null
        )
            then raise(abort, 'tenure: there is a live job with this dedupe key, and nothing replaces it')
        when exists (select 1 from tenure_deduplicated_requests where request_id = ifnull(new.request_id, new.id))
            then raise(abort, 'tenure: this request was deduplicated to another job')
    end;
end;

-- A job changes only together with its events: each new revision has its event, the chain is contiguous, it begins
-- with the old status and attempt and ends with the new ones.
create trigger tenure_jobs_change before update on tenure_jobs
when new.erased_at is null or old.erased_at is not null
begin
    select case
        when old.finished_at is not null
            then raise(abort, 'tenure: a job that has ended does not change')
        when new.transition_count < 1 or new.transition_count > 4
            then raise(abort, 'tenure: a job changes by one to four revisions at a time')
        when new.rev <> old.rev + new.transition_count or new.previous_status is not old.status
            then raise(abort, 'tenure: a job changes only with its events; rev must grow by transition_count, previous_status must be the old status')
        when new.transition_count = 1 and not exists (
            select 1
            from tenure_events only
            where only.job_id = new.id
                and only.rev = new.rev
                and only.from_status = old.status
                and only.to_status = new.status
                and only.at = new.updated_at
                and only.attempt = new.attempt
                and only.attempt = old.attempt + (only.type = 'claimed')
                and (only.commits = 0 or new.committed_at is only.at)
                and new.signal_rev = case when only.type in ('signalled', 'woken') then new.rev else old.signal_rev end
        )
            then raise(abort, 'tenure: a job changes only with its event; there is none that leads to this revision')
        when new.transition_count = 2 and not exists (
            select 1
            from tenure_events claim
            where claim.job_id = new.id
                and claim.rev = new.rev
                and claim.type = 'claimed'
                and claim.from_status = old.status
                and claim.to_status = 'running'
                and new.status = 'running'
                and claim.at = new.updated_at
                and claim.attempt = new.attempt
                and claim.attempt = old.attempt + 1
                and new.signal_rev = old.signal_rev
        ) and not exists (
            select 1
            from tenure_events first
            join tenure_events last on last.job_id = first.job_id and last.rev = new.rev
            where first.job_id = new.id
                and first.rev = old.rev + 1
                and first.from_status = old.status
                and first.attempt = old.attempt + (first.type = 'claimed')
                and last.from_status = first.to_status
                and last.to_status = new.status
                and last.at = new.updated_at
                and last.attempt = new.attempt
                and last.attempt = first.attempt + (last.type = 'claimed')
                and new.signal_rev = case
                    when last.type in ('signalled', 'woken') then last.rev
                    when first.type in ('signalled', 'woken') then first.rev
                    else old.signal_rev
                end
        )
            then raise(abort, 'tenure: a job changes only with its events; there are not two that lead to this revision')
        when new.transition_count > 2 and new.transition_count <> (
            select count(*)
            from tenure_events link
            left join tenure_events previous on previous.job_id = link.job_id and previous.rev = link.rev - 1
            where link.job_id = new.id
                and link.rev > old.rev
                and link.rev <= new.rev
                and link.from_status = case when link.rev = old.rev + 1 then old.status else previous.to_status end
                and link.attempt = (link.type = 'claimed')
                    + case when link.rev = old.rev + 1 then old.attempt else previous.attempt end
                and (link.type in ('signalled', 'woken') or link.rev <> new.signal_rev)
                and (link.type not in ('signalled', 'woken') or link.rev <= new.signal_rev)
                and (new.signal_rev = old.signal_rev or new.signal_rev > old.rev)
                and (
                    link.rev < new.rev
                    or (link.to_status = new.status and link.at = new.updated_at and link.attempt = new.attempt)
                )
        )
            then raise(abort, 'tenure: a job changes only with its events; they do not form a chain to this revision')
        when old.committed_at is not null and (
            new.committed_at is not old.committed_at
            or new.committed_result is not (case when new.finished_at is null then old.committed_result end)
            or (new.finished_at is not null and new.result is not old.committed_result)
            or exists (
                select 1
                from tenure_events later
                where later.job_id = new.id
                    and later.rev > old.rev
                    and later.rev <= new.rev
                    and later.type not in ('heartbeat', 'progress', 'succeeded', 'stalled')
            )
        )
            then raise(abort, 'tenure: a committed job can only be finished, with the result that was committed')
        when old.committed_at is null and new.committed_at is not null and not exists (
            select 1
            from tenure_events mark
            where mark.job_id = new.id and mark.rev > old.rev and mark.rev <= new.rev and mark.commits = 1
                and mark.at = new.committed_at
        )
            then raise(abort, 'tenure: a job is committed only by an event that commits')
        when old.ends_as is not null and (
            new.ends_as is not old.ends_as or new.ends_because is not old.ends_because
            or new.failures_before_undo is not old.failures_before_undo
            or (old.compensated_at is not null and new.compensated_at is not old.compensated_at)
        )
            then raise(abort, 'tenure: the end that follows the undo steps is recorded once')
        when old.compensated_at is not null and exists (
            select 1
            from tenure_events later
            where later.job_id = new.id
                and later.rev > old.rev
                and later.rev <= new.rev
                and later.type not in ('heartbeat', 'progress', 'stalled', 'failed', 'cancelled', 'dead_lettered')
        )
            then raise(abort, 'tenure: a compensated job can only be finished, as was recorded')
        when new.ends_as is not old.ends_as and not exists (
            select 1
            from tenure_events mark
            where mark.job_id = new.id and mark.rev > old.rev and mark.rev <= new.rev
                and mark.type in ('unwinding', 'compensated')
        )
            then raise(abort, 'tenure: the end that follows is recorded by an unwinding or compensated event')
        when new.compensated_at is not old.compensated_at and not exists (
            select 1
            from tenure_events mark
            where mark.job_id = new.id and mark.rev > old.rev and mark.rev <= new.rev
                and mark.type is 'compensated' and mark.at = new.compensated_at
        )
            then raise(abort, 'tenure: a job is compensated only by its event')
        when new.failures < old.failures or new.updated_at < old.updated_at
            then raise(abort, 'tenure: failures and time do not go back')
        when new.status is 'dead_lettered' and not exists (select 1 from tenure_dead_letters where job_id = new.id)
            then raise(abort, 'tenure: a job is dead-lettered together with its dead letter')
        when new.rowid <> old.rowid
            then raise(abort, 'tenure: the rowid of a job never changes')
    end;
end;

-- The columns that never change. Fires only for statements that name one of them.
create trigger tenure_jobs_origin before update of
    id, kind, policy_id, queue, priority, dedupe_key, request_id, correlation_id, trace, submitted_by, partition_key,
    parent_id, redrive_of, awaited, created_at
on tenure_jobs
begin
    select raise(abort, 'tenure: what a job was added with never changes');
end;

create trigger tenure_jobs_payload before update of payload, tags on tenure_jobs
when new.erased_at is null
begin
    select raise(abort, 'tenure: the payload and the tags of a job never change; only erasure removes them');
end;

-- Erasure empties the content of a job that has ended, and touches nothing else.
create trigger tenure_jobs_erase before update of erased_at on tenure_jobs
when new.erased_at is not null
begin
    select case
        when (select writer from tenure_writer) is not 'erasure'
            then raise(abort, 'tenure: only erasure changes a job that has ended, and only the store erases')
        when old.finished_at is null
            then raise(abort, 'tenure: only a job that has ended can be erased')
        when (old.status, old.rev, old.updated_at, old.attempt, old.failures, old.losses, old.lost, old.due_at)
            is not (new.status, new.rev, new.updated_at, new.attempt, new.failures, new.losses, new.lost, new.due_at)
            or (old.started_at, old.finished_at, old.committed_at, old.cancel_reason, old.transition_count, old.previous_status)
            is not (new.started_at, new.finished_at, new.committed_at, new.cancel_reason, new.transition_count, new.previous_status)
            or (old.rowid, old.reason, old.timeout_at, old.signal_rev, old.waiting_for, old.children_max)
            is not (new.rowid, new.reason, new.timeout_at, new.signal_rev, new.waiting_for, new.children_max)
            or (old.ends_as, old.ends_because, old.failures_before_undo, old.compensated_at, old.pinned_version)
            is not (new.ends_as, new.ends_because, new.failures_before_undo, new.compensated_at, new.pinned_version)
            or new.result is not null or new.error is not null or new.last_error is not null
            or new.partial_result is not null or new.payload is not 'null' or new.tags is not null
            then raise(abort, 'tenure: erasure empties the content of a job, and changes nothing else')
    end;
end;

create trigger tenure_jobs_delete before delete on tenure_jobs
begin
    select case
        when (select writer from tenure_writer) is not 'retention'
            then raise(abort, 'tenure: only retention removes a job; use tenure prune')
        when old.finished_at is null
            then raise(abort, 'tenure: only a job that has ended can be removed')
    end;
end;

-- A claim that is in one row with its start also has the revision before its own.
create trigger tenure_events_insert before insert on tenure_events
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (
        select 1
        from tenure_events
        where job_id = new.job_id
            and rev >= new.rev - (new.type is 'claimed' and new.to_status is 'running')
            and rev <= new.rev + 1
            and (rev <= new.rev or (type is 'claimed' and to_status is 'running'))
    )
    or (new.position > 0 and exists (select 1 from tenure_events where position = new.position))
    or (new.commits = 1 and exists (select 1 from tenure_events where job_id = new.job_id and commits = 1))
begin
    select case
        when (select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import'
            then raise(abort, 'tenure: only the store writes events')
        else raise(abort, 'tenure: a revision has one event and a job one commit; nothing replaces an event')
    end;
end;

create trigger tenure_events_update before update on tenure_events
begin
    select case
        when (old.position, old.job_id, old.rev, old.type, old.from_status, old.to_status, old.at, old.attempt)
            is not (new.position, new.job_id, new.rev, new.type, new.from_status, new.to_status, new.at, new.attempt)
            or (old.actor, old.request_id, old.cause, old.digest, old.until_at, old.commits, old.version, old.steps)
            is not (new.actor, new.request_id, new.cause, new.digest, new.until_at, new.commits, new.version, new.steps)
            then raise(abort, 'tenure: the log never changes')
        when new.detail is not old.detail and (
            new.detail is not null
            or not ifnull((select writer from tenure_writer) in ('retention', 'erasure'), 0)
        )
            then raise(abort, 'tenure: the log never changes; only retention and erasure empty the detail of an event')
    end;
end;

create trigger tenure_events_delete before delete on tenure_events
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes events, with their whole job; use tenure prune');
end;

create trigger tenure_policies_insert before insert on tenure_policies
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_policies where id = new.id or body = new.body)
begin
    select raise(abort, 'tenure: only the store adds a policy, and nothing replaces one');
end;

create trigger tenure_policies_update before update on tenure_policies
begin
    select raise(abort, 'tenure: a policy never changes; jobs of another policy name another one');
end;

create trigger tenure_policies_delete before delete on tenure_policies
begin
    select raise(abort, 'tenure: a policy is never removed; jobs name it');
end;

create trigger tenure_claims_insert before insert on tenure_claims
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_claims where request_id = new.request_id)
begin
    select raise(abort, 'tenure: only the store writes claims, and nothing replaces one');
end;

create trigger tenure_claims_update before update on tenure_claims
begin
    select raise(abort, 'tenure: a claim never changes');
end;

create trigger tenure_claims_delete before delete on tenure_claims
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes claims, with their jobs');
end;

create trigger tenure_deduplicated_requests_insert before insert on tenure_deduplicated_requests
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_deduplicated_requests where request_id = new.request_id)
begin
    select raise(abort, 'tenure: only the store writes deduplicated requests, and nothing replaces one');
end;

create trigger tenure_deduplicated_requests_update before update on tenure_deduplicated_requests
begin
    select raise(abort, 'tenure: a deduplicated request never changes');
end;

create trigger tenure_deduplicated_requests_delete before delete on tenure_deduplicated_requests
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes deduplicated requests, with their job');
end;

create trigger tenure_signals_insert before insert on tenure_signals
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_signals where job_id = new.job_id and rev = new.rev)
begin
    select raise(abort, 'tenure: only the store writes signals, and nothing replaces one');
end;

create trigger tenure_signals_update before update on tenure_signals
when (select writer from tenure_writer) is not 'erasure'
    or new.payload is not 'null'
    or (old.job_id, old.rev, old.name, old.at) is not (new.job_id, new.rev, new.name, new.at)
begin
    select raise(abort, 'tenure: a signal never changes; only erasure empties it');
end;

create trigger tenure_signals_delete before delete on tenure_signals
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes signals, with their job');
end;

create trigger tenure_artifacts_insert before insert on tenure_artifacts
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_artifacts where job_id = new.job_id and name = new.name)
    or exists (select 1 from tenure_artifacts where rowid = new.rowid)
begin
    select raise(abort, 'tenure: only the store writes artifacts, and nothing replaces one');
end;

create trigger tenure_artifacts_update before update on tenure_artifacts
begin
    select raise(abort, 'tenure: an artifact never changes');
end;

create trigger tenure_artifacts_delete before delete on tenure_artifacts
when not ifnull((select writer from tenure_writer) in ('retention', 'erasure'), 0)
begin
    select raise(abort, 'tenure: only retention and erasure remove artifacts');
end;

create trigger tenure_steps_insert before insert on tenure_steps
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_steps where job_id = new.job_id and key = new.key)
    or exists (select 1 from tenure_steps where number = new.number)
begin
    select raise(abort, 'tenure: only the store writes steps, and nothing replaces one');
end;

create trigger tenure_steps_update before update on tenure_steps
when (select writer from tenure_writer) is not 'erasure'
    or new.result is not null or new.error is not null or new.undo is not null
    or (old.number, old.job_id, old.key, old.kind, old.name, old.branch, old.ordinal, old.attempt, old.arguments_digest)
    is not (new.number, new.job_id, new.key, new.kind, new.name, new.branch, new.ordinal, new.attempt, new.arguments_digest)
    or (old.status, old.code_version, old.started_at, old.finished_at, old.child_id, old.signal_rev)
    is not (new.status, new.code_version, new.started_at, new.finished_at, new.child_id, new.signal_rev)
    or (old.content_digest, old.digest, old.spend) is not (new.content_digest, new.digest, new.spend)
begin
    select raise(abort, 'tenure: a step never changes; only erasure empties it');
end;

create trigger tenure_steps_delete before delete on tenure_steps
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes steps, with their job');
end;

create trigger tenure_budgets_insert before insert on tenure_budgets
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_budgets where root_id = new.root_id and unit = new.unit)
begin
    select raise(abort, 'tenure: only the store writes budgets, and nothing replaces one');
end;

create trigger tenure_budgets_update before update on tenure_budgets
when (select writer from tenure_writer) is not 'store'
    or new.spent < old.spent
    or (old.root_id, old.unit, old.limit_amount, old.on_lost_spend)
    is not (new.root_id, new.unit, new.limit_amount, new.on_lost_spend)
begin
    select raise(abort, 'tenure: a budget never changes, and its spend only grows');
end;

create trigger tenure_budgets_delete before delete on tenure_budgets
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes budgets, with their run');
end;

create trigger tenure_reservations_insert before insert on tenure_reservations
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (
        select 1 from tenure_reservations
        where (root_id, unit, job_id, attempt, key) = (new.root_id, new.unit, new.job_id, new.attempt, new.key)
    )
begin
    select raise(abort, 'tenure: only the store writes reservations, and nothing replaces one');
end;

create trigger tenure_reservations_update before update on tenure_reservations
begin
    select raise(abort, 'tenure: a reservation never changes');
end;

create trigger tenure_reservations_delete before delete on tenure_reservations
when not ifnull((select writer from tenure_writer) in ('store', 'retention'), 0)
begin
    select raise(abort, 'tenure: only the store removes reservations');
end;

create trigger tenure_outbox_insert before insert on tenure_outbox
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_outbox where id = new.id)
    or exists (select 1 from tenure_outbox where sequence = new.sequence)
begin
    select raise(abort, 'tenure: only the store writes messages, and nothing replaces one');
end;

create trigger tenure_outbox_update before update on tenure_outbox
when case (select writer from tenure_writer)
        when 'store' then (old.body, old.headers) is not (new.body, new.headers)
        when 'erasure' then new.body is not 'null' or new.headers is not null or old.endpoint_count is not new.endpoint_count
        else 1
    end
    or (old.aggregate, old.sequence, old.id, old.topic, old.job_id, old.correlation_id, old.trace, old.at)
    is not (new.aggregate, new.sequence, new.id, new.topic, new.job_id, new.correlation_id, new.trace, new.at)
begin
    select raise(abort, 'tenure: a message never changes; erasure empties it');
end;

create trigger tenure_outbox_delete before delete on tenure_outbox
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes messages');
end;

create trigger tenure_deliveries_insert before insert on tenure_deliveries
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_deliveries where number = new.number)
begin
    select raise(abort, 'tenure: only the store writes deliveries, and nothing replaces one');
end;

create trigger tenure_deliveries_update before update on tenure_deliveries
when (select writer from tenure_writer) is not 'store' or old.handled_at is not null
    or (old.number, old.endpoint, old.aggregate, old.sequence, old.attempt, old.at)
    is not (new.number, new.endpoint, new.aggregate, new.sequence, new.attempt, new.at)
    or (old.outcome, old.status, old.duration_ms, old.error) is not (new.outcome, new.status, new.duration_ms, new.error)
begin
    select raise(abort, 'tenure: a delivery never changes; a dead one is handled once');
end;

create trigger tenure_deliveries_delete before delete on tenure_deliveries
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes deliveries');
end;

create trigger tenure_dead_letters_insert before insert on tenure_dead_letters
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or (new.handled_at is not null and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_dead_letters where job_id = new.job_id)
begin
    select raise(abort, 'tenure: only the store writes dead letters, and nothing replaces one');
end;

create trigger tenure_dead_letters_update before update on tenure_dead_letters
when case (select writer from tenure_writer)
        when 'store' then old.handled_at is not null or new.handled_at is null or old.last_error is not new.last_error
        when 'erasure' then new.last_error is not 'null'
            or (old.handled_at, old.handled_as) is not (new.handled_at, new.handled_as)
        else 1
    end
    or (old.job_id, old.reason_code, old.stage, old.attempts, old.at)
    is not (new.job_id, new.reason_code, new.stage, new.attempts, new.at)
    or (old.last_owner, old.last_lease_expires_at, old.correlation_id)
    is not (new.last_owner, new.last_lease_expires_at, new.correlation_id)
begin
    select raise(abort, 'tenure: a dead letter never changes; only erasure empties it, and it is marked as handled once');
end;

create trigger tenure_dead_letters_delete before delete on tenure_dead_letters
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes dead letters, with their job');
end;

create trigger tenure_operator_log_insert before insert on tenure_operator_log
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_operator_log where id = new.id)
begin
    select raise(abort, 'tenure: only the store writes the operators'' log, and nothing replaces an entry');
end;

create trigger tenure_operator_log_update before update on tenure_operator_log
when (select writer from tenure_writer) is not 'store' or old.published_at is not null or new.published_at is null
    or (old.id, old.at, old.actor, old.action, old.job_id, old.detail)
        is not (new.id, new.at, new.actor, new.action, new.job_id, new.detail)
begin
    select raise(abort, 'tenure: the operators'' log never changes');
end;

create trigger tenure_operator_log_delete before delete on tenure_operator_log
begin
    select raise(abort, 'tenure: the operators'' log never changes');
end;
