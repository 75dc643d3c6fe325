BEGIN TRANSACTION;
CREATE TABLE tenure_artifacts (
    job_id text not null,
    name text not null,
    attempt integer not null,
    media_type text not null,
    body blob not null,
    bytes integer not null,
    at integer not null,
    primary key (job_id, name)
);
CREATE TABLE tenure_claims (
    request_id text not null primary key,
    body text not null,
    job_ids text not null,
    at integer not null
) without rowid;
INSERT INTO "tenure_claims" VALUES('request-1-e61e426026','[["default"],["released"],1,"worker-1",true,"pool"]','["01a1ec37-2840-73ea-aadf-8072a36734dc"]',1794964400205025);
INSERT INTO "tenure_claims" VALUES('request-12-15afcd9284','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1ec37-2955-7475-87e6-2f1325a7b899"]',1794964400485116);
INSERT INTO "tenure_claims" VALUES('request-14-ede783fe93','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1ec37-297b-72e8-a6ca-1fe1d208c633"]',1794964400521112);
INSERT INTO "tenure_claims" VALUES('request-16-79f27a129a','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1ec37-29ac-7723-989a-31992e3e6fba"]',1794964400566810);
INSERT INTO "tenure_claims" VALUES('request-18-827c1addba','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1ec37-29e4-7305-ae3e-ab56f1b6ec84"]',1794964400621342);
INSERT INTO "tenure_claims" VALUES('request-2-7edb77a886','[["default"],["mail"],1,"worker-1",false,"pool"]','["01a1ec37-289f-76aa-a030-eacc612871bc"]',1794964400301346);
INSERT INTO "tenure_claims" VALUES('request-20-570e449277','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1ec37-2a01-76fc-aa03-8c1ac28e4cdf"]',1794964400660893);
INSERT INTO "tenure_claims" VALUES('request-23-238f8f2765','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1ec37-2a3a-754f-83b9-1990d01a4931"]',1794964400711635);
INSERT INTO "tenure_claims" VALUES('request-3-7a307df270','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1ec37-28b3-77eb-a12d-9b6b745fe773"]',1794964400331935);
INSERT INTO "tenure_claims" VALUES('request-4-c7c4c0d24f','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1ec37-28dc-77f4-b644-c440aff5a483"]',1794964400358957);
INSERT INTO "tenure_claims" VALUES('request-7-80783d8704','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1ec37-292a-71ff-b7b0-7cfbc0f9496c"]',1794964400430573);
INSERT INTO "tenure_claims" VALUES('request-9-953f781ab8','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1ec37-293a-75f5-bf36-2909bc27bbba"]',1794964400444782);
CREATE TABLE tenure_dead_letters (
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
    correlation_id text,
    handled_at integer,
    handled_as text,
    constraint "tenure: a handled dead letter has handled_at and handled_as" check (
        case when handled_at is null then handled_as is null else ifnull(handled_as in ('redriven', 'discarded'), 0) end
    )
) without rowid;
INSERT INTO "tenure_dead_letters" VALUES('01a1ec37-2a3a-754f-83b9-1990d01a4931','validation_failed','input','{"type":"ValueError","message":"no"}',1,1794964400725754,'worker-1',1794964460711635,NULL,NULL,NULL);
CREATE TABLE tenure_deduplicated_requests (
    request_id text not null primary key,
    digest text not null,
    detail text,
    job_id text not null,
    at integer not null
) without rowid;
CREATE TABLE tenure_engines (
    id text not null primary key,
    name text not null,
    capabilities text not null,
    connected_at integer not null,
    seen_at integer not null,
    disconnected_at integer
) without rowid;
CREATE TABLE tenure_events (
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

    constraint "tenure: the lifecycle has no such event between these statuses" check (
        (from_status is null) = (type is 'enqueued')
        and case type
            when 'enqueued' then to_status is 'queued'
            when 'claimed' then to_status is 'claimed' and (
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
                and from_status in ('queued', 'claimed', 'running', 'stalled')
            when 'halted' then from_status is 'running' and to_status is 'halted'
            when 'suspended' then from_status is 'running' and to_status is 'waiting'
            when 'signalled' then to_status is from_status
                and from_status in ('queued', 'claimed', 'running', 'waiting', 'retry', 'stalled')
            when 'woken' then to_status is from_status and from_status is 'waiting'
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
INSERT INTO "tenure_events" VALUES(1,'01a1ec37-2829-745c-aed2-d52c6a39ffe7',1,'enqueued',NULL,'queued',1794964400170740,0,'client:ada','01a1ec37-2829-745c-aed2-d52c6a39ffe7',NULL,NULL,'inBeabcdunTuFvzAI08SDA',NULL,0,1);
INSERT INTO "tenure_events" VALUES(2,'01a1ec37-282f-777d-9fdb-1136934334ee',1,'enqueued',NULL,'queued',1794964400176032,0,'client:ada','01a1ec37-282f-777d-9fdb-1136934334ee',NULL,NULL,'YHmV5f9Ku6GF5C7jPsy8ow',NULL,0,1);
INSERT INTO "tenure_events" VALUES(3,'01a1ec37-2834-7081-9b66-4edb68f15982',1,'enqueued',NULL,'queued',1794964400181366,0,'client:ada','01a1ec37-2834-7081-9b66-4edb68f15982',NULL,NULL,'V7qcooCBEZJNynwgRHpqLQ',NULL,0,1);
INSERT INTO "tenure_events" VALUES(4,'01a1ec37-2840-73ea-aadf-8072a36734dc',1,'enqueued',NULL,'queued',1794964400193264,0,'client:ada','01a1ec37-2840-73ea-aadf-8072a36734dc',NULL,NULL,'KUN5DLpKdO38Xqx_uwuBLA',NULL,0,1);
INSERT INTO "tenure_events" VALUES(5,'01a1ec37-2840-73ea-aadf-8072a36734dc',2,'claimed','queued','claimed',1794964400205025,1,'pool:worker-1','request-1-e61e426026',NULL,NULL,NULL,1794964460205025,0,1);
INSERT INTO "tenure_events" VALUES(6,'01a1ec37-2840-73ea-aadf-8072a36734dc',3,'started','claimed','running',1794964400205025,1,'pool:worker-1','request-1-e61e426026',NULL,NULL,NULL,NULL,0,1);
INSERT INTO "tenure_events" VALUES(7,'01a1ec37-289f-76aa-a030-eacc612871bc',1,'enqueued',NULL,'queued',1794964400293447,0,'client:ada','01a1ec37-289f-76aa-a030-eacc612871bc',NULL,NULL,'ii_2pH_H1KBStBZJx-MN0A',NULL,0,1);
INSERT INTO "tenure_events" VALUES(8,'01a1ec37-289f-76aa-a030-eacc612871bc',2,'claimed','queued','claimed',1794964400301346,1,'pool:worker-1','request-2-7edb77a886',NULL,NULL,NULL,1794964460301346,0,1);
INSERT INTO "tenure_events" VALUES(9,'01a1ec37-28b3-77eb-a12d-9b6b745fe773',1,'enqueued',NULL,'queued',1794964400318846,0,'client:ada','01a1ec37-28b3-77eb-a12d-9b6b745fe773',NULL,NULL,'ii_2pH_H1KBStBZJx-MN0A',NULL,0,1);
INSERT INTO "tenure_events" VALUES(10,'01a1ec37-28b3-77eb-a12d-9b6b745fe773',2,'claimed','queued','claimed',1794964400331935,1,'pool:worker-1','request-3-7a307df270',NULL,NULL,NULL,1794964460331935,0,1);
INSERT INTO "tenure_events" VALUES(11,'01a1ec37-28b3-77eb-a12d-9b6b745fe773',3,'started','claimed','running',1794964400331935,1,'pool:worker-1','request-3-7a307df270',NULL,NULL,NULL,NULL,0,1);
INSERT INTO "tenure_events" VALUES(12,'01a1ec37-28dc-77f4-b644-c440aff5a483',1,'enqueued',NULL,'queued',1794964400349229,0,'client:ada','01a1ec37-28dc-77f4-b644-c440aff5a483',NULL,NULL,'ii_2pH_H1KBStBZJx-MN0A',NULL,0,1);
INSERT INTO "tenure_events" VALUES(13,'01a1ec37-28dc-77f4-b644-c440aff5a483',2,'claimed','queued','claimed',1794964400358957,1,'pool:worker-1','request-4-c7c4c0d24f',NULL,NULL,NULL,1794964460358957,0,1);
INSERT INTO "tenure_events" VALUES(14,'01a1ec37-28dc-77f4-b644-c440aff5a483',3,'started','claimed','running',1794964400358957,1,'pool:worker-1','request-4-c7c4c0d24f',NULL,NULL,NULL,NULL,0,1);
INSERT INTO "tenure_events" VALUES(15,'01a1ec37-28dc-77f4-b644-c440aff5a483',4,'progress','running','running',1794964400393197,1,'runner:worker-1','request-5-c63a4f402f',NULL,'{"percent":40,"message":"almost"}','kLGAt6jwfhR9HRjR0ilbVQ',NULL,0,1);
INSERT INTO "tenure_events" VALUES(16,'01a1ec37-28dc-77f4-b644-c440aff5a483',5,'heartbeat','running','running',1794964400424629,1,'runner:worker-1','request-6-e71d62c8c3',NULL,NULL,NULL,NULL,0,1);
INSERT INTO "tenure_events" VALUES(17,'01a1ec37-292a-71ff-b7b0-7cfbc0f9496c',1,'enqueued',NULL,'queued',1794964400426876,0,'client:ada','01a1ec37-292a-71ff-b7b0-7cfbc0f9496c',NULL,NULL,'ii_2pH_H1KBStBZJx-MN0A',NULL,0,1);
INSERT INTO "tenure_events" VALUES(18,'01a1ec37-292a-71ff-b7b0-7cfbc0f9496c',2,'claimed','queued','claimed',1794964400430573,1,'pool:worker-1','request-7-80783d8704',NULL,NULL,NULL,1794964460430573,0,1);
INSERT INTO "tenure_events" VALUES(19,'01a1ec37-292a-71ff-b7b0-7cfbc0f9496c',3,'started','claimed','running',1794964400430573,1,'pool:worker-1','request-7-80783d8704',NULL,NULL,NULL,NULL,0,1);
INSERT INTO "tenure_events" VALUES(20,'01a1ec37-292a-71ff-b7b0-7cfbc0f9496c',4,'suspended','running','waiting',1794964400441189,1,'runner:worker-1','request-8-878084d45d',NULL,NULL,NULL,NULL,0,1);
INSERT INTO "tenure_events" VALUES(21,'01a1ec37-293a-75f5-bf36-2909bc27bbba',1,'enqueued',NULL,'queued',1794964400443192,0,'client:ada','01a1ec37-293a-75f5-bf36-2909bc27bbba',NULL,NULL,'ii_2pH_H1KBStBZJx-MN0A',NULL,0,1);
INSERT INTO "tenure_events" VALUES(22,'01a1ec37-293a-75f5-bf36-2909bc27bbba',2,'claimed','queued','claimed',1794964400444782,1,'pool:worker-1','request-9-953f781ab8',NULL,NULL,NULL,1794964460444782,0,1);
INSERT INTO "tenure_events" VALUES(23,'01a1ec37-293a-75f5-bf36-2909bc27bbba',3,'started','claimed','running',1794964400444782,1,'pool:worker-1','request-9-953f781ab8',NULL,NULL,NULL,NULL,0,1);
INSERT INTO "tenure_events" VALUES(24,'01a1ec37-293a-75f5-bf36-2909bc27bbba',4,'retry_scheduled','running','retry',1794964400451073,1,'runner:worker-1','request-10-951476e9d7',NULL,'{"error":{"type":"ValueError","message":"no"},"delay_seconds":3600.0}','JLDoV2gEM0YirfVeqBQUrA',1794968000451073,0,1);
INSERT INTO "tenure_events" VALUES(25,'01a1ec37-2840-73ea-aadf-8072a36734dc',4,'released','running','stalled',1794964400458274,1,'runner:worker-1','request-11-a9135d5b7f','shutdown',NULL,NULL,NULL,0,1);
INSERT INTO "tenure_events" VALUES(26,'01a1ec37-2955-7475-87e6-2f1325a7b899',1,'enqueued',NULL,'queued',1794964400470006,0,'client:ada','01a1ec37-2955-7475-87e6-2f1325a7b899',NULL,NULL,'ii_2pH_H1KBStBZJx-MN0A',NULL,0,1);
INSERT INTO "tenure_events" VALUES(27,'01a1ec37-2955-7475-87e6-2f1325a7b899',2,'claimed','queued','claimed',1794964400485116,1,'pool:worker-1','request-12-15afcd9284',NULL,NULL,NULL,1794964460485116,0,1);
INSERT INTO "tenure_events" VALUES(28,'01a1ec37-2955-7475-87e6-2f1325a7b899',3,'started','claimed','running',1794964400485116,1,'pool:worker-1','request-12-15afcd9284',NULL,NULL,NULL,NULL,0,1);
INSERT INTO "tenure_events" VALUES(29,'01a1ec37-2955-7475-87e6-2f1325a7b899',4,'succeeded','running','succeeded',1794964400489527,1,'runner:worker-1','request-13-738a1668f8',NULL,NULL,'WL9bVHjl0ft0Qdrv-f0e1g',NULL,1,1);
INSERT INTO "tenure_events" VALUES(30,'01a1ec37-297b-72e8-a6ca-1fe1d208c633',1,'enqueued',NULL,'queued',1794964400507752,0,'client:ada','01a1ec37-297b-72e8-a6ca-1fe1d208c633',NULL,NULL,'ii_2pH_H1KBStBZJx-MN0A',NULL,0,1);
INSERT INTO "tenure_events" VALUES(31,'01a1ec37-297b-72e8-a6ca-1fe1d208c633',2,'claimed','queued','claimed',1794964400521112,1,'pool:worker-1','request-14-ede783fe93',NULL,NULL,NULL,1794964460521112,0,1);
INSERT INTO "tenure_events" VALUES(32,'01a1ec37-297b-72e8-a6ca-1fe1d208c633',3,'started','claimed','running',1794964400521112,1,'pool:worker-1','request-14-ede783fe93',NULL,NULL,NULL,NULL,0,1);
INSERT INTO "tenure_events" VALUES(33,'01a1ec37-297b-72e8-a6ca-1fe1d208c633',4,'committed','running','running',1794964400542625,1,'runner:worker-1','request-15-5ec332a3b4',NULL,NULL,'TLelzlwIpXUTQ4wN4Yu5NQ',NULL,1,1);
INSERT INTO "tenure_events" VALUES(34,'01a1ec37-29ac-7723-989a-31992e3e6fba',1,'enqueued',NULL,'queued',1794964400556744,0,'client:ada','01a1ec37-29ac-7723-989a-31992e3e6fba',NULL,NULL,'ii_2pH_H1KBStBZJx-MN0A',NULL,0,1);
INSERT INTO "tenure_events" VALUES(35,'01a1ec37-29ac-7723-989a-31992e3e6fba',2,'claimed','queued','claimed',1794964400566810,1,'pool:worker-1','request-16-79f27a129a',NULL,NULL,NULL,1794964460566810,0,1);
INSERT INTO "tenure_events" VALUES(36,'01a1ec37-29ac-7723-989a-31992e3e6fba',3,'started','claimed','running',1794964400566810,1,'pool:worker-1','request-16-79f27a129a',NULL,NULL,NULL,NULL,0,1);
INSERT INTO "tenure_events" VALUES(37,'01a1ec37-29ac-7723-989a-31992e3e6fba',4,'committed','running','running',1794964400575357,1,'runner:worker-1','request-17-85ce1d60e3',NULL,NULL,'a4ayc_80_OGda4BO_1o_Vw',NULL,1,1);
INSERT INTO "tenure_events" VALUES(38,'01a1ec37-29ac-7723-989a-31992e3e6fba',5,'succeeded','running','succeeded',1794964400575357,1,'runner:worker-1','request-17-85ce1d60e3',NULL,NULL,'a4ayc_80_OGda4BO_1o_Vw',NULL,0,1);
INSERT INTO "tenure_events" VALUES(39,'01a1ec37-29e4-7305-ae3e-ab56f1b6ec84',1,'enqueued',NULL,'queued',1794964400613438,0,'client:ada','01a1ec37-29e4-7305-ae3e-ab56f1b6ec84',NULL,NULL,'ii_2pH_H1KBStBZJx-MN0A',NULL,0,1);
INSERT INTO "tenure_events" VALUES(40,'01a1ec37-29e4-7305-ae3e-ab56f1b6ec84',2,'claimed','queued','claimed',1794964400621342,1,'pool:worker-1','request-18-827c1addba',NULL,NULL,NULL,1794964460621342,0,1);
INSERT INTO "tenure_events" VALUES(41,'01a1ec37-29e4-7305-ae3e-ab56f1b6ec84',3,'started','claimed','running',1794964400621342,1,'pool:worker-1','request-18-827c1addba',NULL,NULL,NULL,NULL,0,1);
INSERT INTO "tenure_events" VALUES(42,'01a1ec37-29e4-7305-ae3e-ab56f1b6ec84',4,'failed','running','failed',1794964400639997,1,'runner:worker-1','request-19-5e6fb579a4','permanent_error','{"error":{"type":"ValueError","message":"no"}}','JLDoV2gEM0YirfVeqBQUrA',NULL,0,1);
INSERT INTO "tenure_events" VALUES(43,'01a1ec37-2a01-76fc-aa03-8c1ac28e4cdf',1,'enqueued',NULL,'queued',1794964400641851,0,'client:ada','01a1ec37-2a01-76fc-aa03-8c1ac28e4cdf',NULL,NULL,'ii_2pH_H1KBStBZJx-MN0A',NULL,0,1);
INSERT INTO "tenure_events" VALUES(44,'01a1ec37-2a01-76fc-aa03-8c1ac28e4cdf',2,'claimed','queued','claimed',1794964400660893,1,'pool:worker-1','request-20-570e449277',NULL,NULL,NULL,1794964460660893,0,1);
INSERT INTO "tenure_events" VALUES(45,'01a1ec37-2a01-76fc-aa03-8c1ac28e4cdf',3,'started','claimed','running',1794964400660893,1,'pool:worker-1','request-20-570e449277',NULL,NULL,NULL,NULL,0,1);
INSERT INTO "tenure_events" VALUES(46,'01a1ec37-2a01-76fc-aa03-8c1ac28e4cdf',4,'halted','running','halted',1794964400673380,1,'runner:worker-1','request-21-b5cc908b7f',NULL,'{"reason":"too dear"}','CAqe1ChVnvYCZotMAPEU8Q',NULL,0,1);
INSERT INTO "tenure_events" VALUES(47,'01a1ec37-282f-777d-9fdb-1136934334ee',2,'cancelled','queued','cancelled',1794964400689163,0,'client:ada','request-22-5e9997caf7',NULL,'{"reason":"requested"}',NULL,NULL,0,1);
INSERT INTO "tenure_events" VALUES(48,'01a1ec37-2a3a-754f-83b9-1990d01a4931',1,'enqueued',NULL,'queued',1794964400698978,0,'client:ada','01a1ec37-2a3a-754f-83b9-1990d01a4931',NULL,NULL,'ii_2pH_H1KBStBZJx-MN0A',NULL,0,1);
INSERT INTO "tenure_events" VALUES(49,'01a1ec37-2a3a-754f-83b9-1990d01a4931',2,'claimed','queued','claimed',1794964400711635,1,'pool:worker-1','request-23-238f8f2765',NULL,NULL,NULL,1794964460711635,0,1);
INSERT INTO "tenure_events" VALUES(50,'01a1ec37-2a3a-754f-83b9-1990d01a4931',3,'started','claimed','running',1794964400711635,1,'pool:worker-1','request-23-238f8f2765',NULL,NULL,NULL,NULL,0,1);
INSERT INTO "tenure_events" VALUES(51,'01a1ec37-2a3a-754f-83b9-1990d01a4931',4,'dead_lettered','running','dead_lettered',1794964400725754,1,'runner:worker-1','request-24-7a1719aa7d','validation_failed','{"error":{"type":"ValueError","message":"no"},"stage":"input"}','JLDoV2gEM0YirfVeqBQUrA',NULL,0,1);
INSERT INTO "tenure_events" VALUES(52,'01a1ec37-2834-7081-9b66-4edb68f15982',2,'signalled','queued','queued',1794964400741426,0,'client:ada','request-25-305d91ae99',NULL,'{"name":"go"}','eQJpm-Qsio5G-7tFAXJlFw',NULL,0,1);
INSERT INTO "tenure_events" VALUES(53,'01a1ec37-2834-7081-9b66-4edb68f15982',3,'cancel_requested','queued','queued',1794964400741426,0,'client:ada','request-25-305d91ae99',NULL,'{"reason":"requested"}',NULL,NULL,0,1);
CREATE TABLE tenure_jobs (
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
    cancel_requested integer not null default 0,
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
    constraint "tenure: a halted, cancelled or dead-lettered job has a reason, and no live one has" check (
        case when status is 'halted' or status is 'cancelled' or status is 'dead_lettered'
            then reason is not null
            else reason is null or finished_at is not null
        end
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
        and (attempt > 0 or not (status is 'claimed' or status is 'running'))
    ),
    constraint "tenure: revisions count from 1, by one to four at a time" check (rev >= 1 and transition_count between 1 and 4),
    constraint "tenure: created_at, started_at, finished_at and updated_at are in order" check (
        created_at <= updated_at
        and (started_at is null or (created_at <= started_at and started_at <= updated_at))
        and (finished_at is null or (ifnull(started_at, created_at) <= finished_at and finished_at <= updated_at))
    ),
    constraint "tenure: flags are 0 or 1" check (lost between 0 and 1 and cancel_requested between 0 and 1)
);
INSERT INTO "tenure_jobs" VALUES('01a1ec37-2829-745c-aed2-d52c6a39ffe7','queued',54689827514837,'default',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'queued',1,1794964400170740,1794964400170740,0,0,0,0,1794964400170740,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1ec37-282f-777d-9fdb-1136934334ee','cancelled',54689827514837,'default',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'cancelled',2,1794964400176032,1794964400689163,0,0,0,0,1794964400176032,NULL,NULL,NULL,NULL,NULL,NULL,1794964400689163,NULL,0,NULL,NULL,1,'queued',NULL,NULL,'requested',NULL,NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1ec37-2834-7081-9b66-4edb68f15982','signalled',54689827514837,'default',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'queued',3,1794964400181366,1794964400741426,0,0,0,0,1794964400181366,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,NULL,NULL,2,'queued',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1ec37-2840-73ea-aadf-8072a36734dc','released',54689827514837,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'stalled',4,1794964400193264,1794964400458274,1,0,0,0,1794964400193264,NULL,NULL,NULL,NULL,NULL,1794964400205025,NULL,NULL,0,NULL,NULL,1,'running',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1ec37-289f-76aa-a030-eacc612871bc','mail',54689827514837,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'claimed',2,1794964400293447,1794964400301346,1,0,0,0,1794964400293447,'worker-1','42015edc-9de3-4f16-b8e8-ae9e13ec2469',1794964460301346,1794964440301346,NULL,NULL,NULL,NULL,0,NULL,NULL,1,'queued',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1ec37-28b3-77eb-a12d-9b6b745fe773','mail',54689827514837,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'running',3,1794964400318846,1794964400331935,1,0,0,0,1794964400318846,'worker-1','85627a5a-caf0-4e0f-b4c0-a0de01651a98',1794964460331935,1794964440331935,1795050800331935,1794964400331935,NULL,NULL,0,NULL,NULL,2,'queued',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1ec37-28dc-77f4-b644-c440aff5a483','mail',54689827514837,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'running',5,1794964400349229,1794964400424629,1,0,0,0,1794964400349229,'worker-1','108465c1-c121-4fb9-80e7-26166306f109',1794964460358957,1794964440424629,1795050800358957,1794964400358957,NULL,NULL,0,40,NULL,1,'running',NULL,'almost',NULL,NULL,NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1ec37-292a-71ff-b7b0-7cfbc0f9496c','mail',54689827514837,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'waiting',4,1794964400426876,1794964400441189,1,0,0,0,NULL,NULL,NULL,NULL,NULL,NULL,1794964400430573,NULL,NULL,0,NULL,NULL,1,'running',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1ec37-293a-75f5-bf36-2909bc27bbba','mail',54689827514837,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'retry',4,1794964400443192,1794964400451073,1,1,0,0,1794968000451073,NULL,NULL,NULL,NULL,NULL,1794964400444782,NULL,NULL,0,NULL,NULL,1,'running',NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"type":"ValueError","message":"no"}','{}');
INSERT INTO "tenure_jobs" VALUES('01a1ec37-2955-7475-87e6-2f1325a7b899','mail',54689827514837,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'succeeded',4,1794964400470006,1794964400489527,1,0,0,0,1794964400470006,NULL,NULL,NULL,NULL,NULL,1794964400485116,1794964400489527,1794964400489527,0,NULL,NULL,1,'running',NULL,NULL,NULL,NULL,'"done"',NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1ec37-297b-72e8-a6ca-1fe1d208c633','mail',54689827514837,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'running',4,1794964400507752,1794964400542625,1,0,0,0,1794964400507752,'worker-1','9e0dec48-6730-486a-9497-c091a52b797e',1794964460521112,1794964440521112,1795050800521112,1794964400521112,NULL,1794964400542625,0,NULL,NULL,1,'running',NULL,NULL,NULL,'"kept"',NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1ec37-29ac-7723-989a-31992e3e6fba','mail',54689827514837,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'succeeded',5,1794964400556744,1794964400575357,1,0,0,0,1794964400556744,NULL,NULL,NULL,NULL,NULL,1794964400566810,1794964400575357,1794964400575357,0,NULL,NULL,2,'running',NULL,NULL,NULL,NULL,'1',NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1ec37-29e4-7305-ae3e-ab56f1b6ec84','mail',54689827514837,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'failed',4,1794964400613438,1794964400639997,1,1,0,0,1794964400613438,NULL,NULL,NULL,NULL,NULL,1794964400621342,1794964400639997,NULL,0,NULL,NULL,1,'running',NULL,NULL,NULL,NULL,NULL,NULL,'{"type":"ValueError","message":"no"}','{"type":"ValueError","message":"no"}','{}');
INSERT INTO "tenure_jobs" VALUES('01a1ec37-2a01-76fc-aa03-8c1ac28e4cdf','mail',54689827514837,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'halted',4,1794964400641851,1794964400673380,1,0,0,0,1794964400641851,NULL,NULL,NULL,NULL,NULL,1794964400660893,1794964400673380,NULL,0,NULL,NULL,1,'running',NULL,NULL,'too dear',NULL,NULL,'[1]',NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1ec37-2a3a-754f-83b9-1990d01a4931','mail',54689827514837,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'dead_lettered',4,1794964400698978,1794964400725754,1,1,0,0,1794964400698978,NULL,NULL,NULL,NULL,NULL,1794964400711635,1794964400725754,NULL,0,NULL,NULL,1,'running',NULL,NULL,'validation_failed',NULL,NULL,NULL,NULL,'{"type":"ValueError","message":"no"}','{}');
CREATE TABLE tenure_meta (
    key text primary key,
    value integer not null
) without rowid;
INSERT INTO "tenure_meta" VALUES('min_code_version',1);
CREATE TABLE tenure_migrations (
    number integer primary key,
    name text not null,
    checksum text not null,
    applied_at integer not null
);
INSERT INTO "tenure_migrations" VALUES(1,'initial','5faffe366ff9f0be',1794964400037007);
CREATE TABLE tenure_operator_log (
    id integer primary key autoincrement,
    at integer not null,
    actor text not null,
    action text not null,
    job_id text,
    detail text
);
CREATE TABLE tenure_outbox (
    aggregate text not null,
    sequence integer not null,
    id text not null unique,
    topic text not null,
    body text not null,
    headers text,
    job_id text,
    at integer not null,
    delivered_at integer,
    dead_at integer,
    attempts integer not null default 0,
    last_error text,
    primary key (aggregate, sequence)
);
CREATE TABLE tenure_policies (
    id integer primary key,
    body text not null unique
);
INSERT INTO "tenure_policies" VALUES(54689827514837,'{"backoff":{"base_seconds":0.5,"factor":2.0,"max_seconds":60.0},"heartbeat_seconds":null,"lease_seconds":60.0,"max_attempts":5,"on_exhausted":"fail","on_lost":"requeue","timeouts":{"claimed_seconds":null,"queued_seconds":null,"running_seconds":86400.0}}');
CREATE TABLE tenure_queues (
    name text not null primary key,
    paused_at integer,
    concurrency_max integer check (concurrency_max > 0),
    key_concurrency_max integer check (key_concurrency_max > 0),
    rate_count integer check (rate_count > 0),
    rate_seconds real check (rate_seconds > 0),
    key_rate_count integer check (key_rate_count > 0),
    key_rate_seconds real check (key_rate_seconds > 0),
    fair integer not null default 0 check (fair between 0 and 1),
    turn text not null default '',
    spent text,
    updated_at integer not null,
    constraint "tenure: a rate has a count and a time" check (
        (rate_count is null) = (rate_seconds is null) and (key_rate_count is null) = (key_rate_seconds is null)
    )
) without rowid;
CREATE TABLE tenure_rate_usage (
    queue text not null,
    key text not null,
    spent text not null,
    until_at integer not null,
    primary key (queue, key)
) without rowid;
CREATE TABLE tenure_schedules (
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
    grace_seconds real not null check (grace_seconds >= 0),
    source text not null check (source in ('code', 'operator')),
    paused_at integer,
    next_at integer,
    last_at integer,
    updated_at integer not null,
    constraint schedules_forward check (next_at > last_at)
) without rowid;
CREATE TABLE tenure_signals (
    job_id text not null,
    rev integer not null,
    name text not null,
    payload text not null,
    at integer not null,
    primary key (job_id, rev)
) without rowid;
INSERT INTO "tenure_signals" VALUES('01a1ec37-2834-7081-9b66-4edb68f15982',2,'go','7',1794964400741426);
CREATE TABLE tenure_steps (
    job_id text not null,
    key text not null,
    name text not null,
    attempt integer not null,
    status text not null,
    result text,
    error text,
    started_at integer not null,
    finished_at integer,
    primary key (job_id, key)
);
CREATE TABLE tenure_streams (
    aggregate text not null primary key,
    written integer not null default 0,
    delivered integer not null default 0,
    owner text,
    token text,
    lease_expires_at integer,
    failures integer not null default 0,
    due_at integer,
    check (0 <= delivered and delivered <= written)
) without rowid;
CREATE TABLE tenure_tokens (
    id text not null primary key,
    name text not null,
    hash text not null unique,
    scopes text not null,
    created_at integer not null,
    expires_at integer,
    revoked_at integer
) without rowid;
CREATE TABLE tenure_workers (
    id text not null primary key,
    host text not null,
    pid integer not null,
    version text not null,
    queues text not null,
    kinds text not null,
    concurrency integer not null,
    started_at integer not null,
    seen_at integer not null,
    stopped_at integer
) without rowid;
CREATE TABLE tenure_writer (
    only integer primary key,
    writer text,

    constraint "tenure: tenure_writer has one row" check (only = 1),
    constraint "tenure: the writer is the store, retention, erasure or an import" check (
        writer is null or writer is 'store' or writer is 'retention' or writer is 'erasure' or writer is 'import'
    )
);
INSERT INTO "tenure_writer" VALUES(1,NULL);
CREATE INDEX tenure_jobs_ready on tenure_jobs (queue, priority desc, due_at, id)
    where owner is null and finished_at is null;
CREATE INDEX tenure_jobs_leased on tenure_jobs (queue, id)
    where owner is not null or status = 'stalled';
CREATE INDEX tenure_jobs_partitioned on tenure_jobs (queue, partition_key, priority desc, due_at, id)
    where owner is null and finished_at is null and partition_key is not null;
CREATE INDEX tenure_jobs_overdue on tenure_jobs (timeout_at, id)
    where status = 'queued' and timeout_at is not null;
CREATE UNIQUE INDEX tenure_jobs_dedupe on tenure_jobs (kind, dedupe_key)
    where dedupe_key is not null and finished_at is null;
CREATE UNIQUE INDEX tenure_jobs_request on tenure_jobs (request_id)
    where request_id is not null;
CREATE INDEX tenure_jobs_correlation on tenure_jobs (correlation_id, id)
    where correlation_id is not null;
CREATE INDEX tenure_jobs_finished on tenure_jobs (finished_at)
    where finished_at is not null;
CREATE UNIQUE INDEX tenure_events_job on tenure_events (job_id, rev);
CREATE UNIQUE INDEX tenure_events_one_commit on tenure_events (job_id) where commits = 1;
CREATE INDEX tenure_events_type on tenure_events (type, at);
CREATE INDEX tenure_deduplicated_requests_job on tenure_deduplicated_requests (job_id);
CREATE INDEX tenure_dead_letters_at on tenure_dead_letters (at);
CREATE INDEX tenure_streams_due on tenure_streams (due_at) where due_at is not null;
CREATE INDEX tenure_outbox_job on tenure_outbox (job_id) where job_id is not null;
CREATE INDEX tenure_rate_usage_until on tenure_rate_usage (queue, until_at);
CREATE INDEX tenure_schedules_next on tenure_schedules (next_at, name) where next_at is not null and paused_at is null;
CREATE VIEW tenure_executions as
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
        when start.rev is not null then 'in_progress'
        else 'leased'
    end as status,
    claim.at as leased_at,
    start.at as started_at,
    case when done.rev is not null then done.at when mark.rev is null then ending.at end as finished_at,
    case when done.rev is null and mark.rev is null then ifnull(ending.cause, ending.type) end as cause
from tenure_events claim
left join tenure_events start
    on start.job_id = claim.job_id and start.attempt = claim.attempt and start.type = 'started'
left join tenure_events mark
    on mark.job_id = claim.job_id and mark.attempt = claim.attempt and mark.type = 'committed'
left join tenure_events done
    on done.job_id = claim.job_id and done.attempt = claim.attempt and done.type = 'succeeded'
left join tenure_events ending
    on ending.job_id = claim.job_id
    and ending.attempt = claim.attempt
    and ending.from_status in ('claimed', 'running')
    and ending.to_status not in ('claimed', 'running')
where claim.type = 'claimed';
CREATE TRIGGER tenure_writer_insert before insert on tenure_writer
begin
    select raise(abort, 'tenure: tenure_writer keeps its one row; nothing replaces it');
end;
CREATE TRIGGER tenure_writer_delete before delete on tenure_writer
begin
    select raise(abort, 'tenure: tenure_writer keeps its one row; without it no write is allowed');
end;
CREATE TRIGGER tenure_schedules_change before update on tenure_schedules
when new.rev <> old.rev + 1 or new.name <> old.name or new.last_at < old.last_at
    or (old.last_at is not null and new.last_at is null)
begin
    select raise(abort, 'tenure: a schedule changes by one revision, and its due times do not come again');
end;
CREATE TRIGGER tenure_writer_import before update on tenure_writer
when new.writer is 'import' and (exists (select 1 from tenure_jobs) or exists (select 1 from tenure_events))
begin
    select raise(abort, 'tenure: only an empty database can be imported into');
end;
CREATE TRIGGER tenure_jobs_insert before insert on tenure_jobs
begin
    select case
        when (new.rev <> 1 or new.status is not 'queued' or new.attempt <> 0 or new.transition_count <> 1 or new.previous_status is not null)
            and (select writer from tenure_writer) is not 'import'
            then raise(abort, 'tenure: a job begins as queued, at revision 1 and attempt 0')
        when (new.erased_at is not null or new.committed_at is not null or new.failures <> 0)
            and (select writer from tenure_writer) is not 'import'
            then raise(abort, 'tenure: a job begins without a past')
        when (new.rev <> 1 or new.status is not 'queued' or new.attempt <> 0) and new.rev is not (
            select case when max(link.rev) = new.rev then sum(
                link.from_status is previous.to_status
                and link.attempt = (link.type = 'claimed') + ifnull(previous.attempt, 0)
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
            where kind = new.kind and dedupe_key = new.dedupe_key and finished_at is null
        )
            then raise(abort, 'tenure: there is a live job with this dedupe key, and nothing replaces it')
        when exists (select 1 from tenure_deduplicated_requests where request_id = ifnull(new.request_id, new.id))
            then raise(abort, 'tenure: this request was deduplicated to another job')
    end;
end;
CREATE TRIGGER tenure_jobs_change before update on tenure_jobs
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
        )
            then raise(abort, 'tenure: a job changes only with its event; there is none that leads to this revision')
        when new.transition_count = 2 and not exists (
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
        )
            then raise(abort, 'tenure: a job is committed only by an event that commits')
        when new.status is 'dead_lettered' and not exists (select 1 from tenure_dead_letters where job_id = new.id)
            then raise(abort, 'tenure: a job is dead-lettered together with its dead letter')
        when new.rowid <> old.rowid
            then raise(abort, 'tenure: a job keeps its place')
    end;
end;
CREATE TRIGGER tenure_jobs_origin before update of
    id, kind, policy_id, queue, priority, dedupe_key, request_id, correlation_id, trace, submitted_by, partition_key,
    parent_id, redrive_of, created_at
on tenure_jobs
begin
    select raise(abort, 'tenure: what a job was added with never changes');
end;
CREATE TRIGGER tenure_jobs_payload before update of payload, tags on tenure_jobs
when new.erased_at is null
begin
    select raise(abort, 'tenure: the payload and the tags of a job never change; only erasure removes them');
end;
CREATE TRIGGER tenure_jobs_erase before update of erased_at on tenure_jobs
when new.erased_at is not null
begin
    select case
        when (select writer from tenure_writer) is not 'erasure'
            then raise(abort, 'tenure: only erasure changes a job that has ended, and only the store erases')
        when old.finished_at is null
            then raise(abort, 'tenure: only a job that has ended can be erased')
        when (old.status, old.rev, old.updated_at, old.attempt, old.failures, old.losses, old.lost, old.due_at)
            is not (new.status, new.rev, new.updated_at, new.attempt, new.failures, new.losses, new.lost, new.due_at)
            or (old.started_at, old.finished_at, old.committed_at, old.cancel_requested, old.transition_count, old.previous_status)
            is not (new.started_at, new.finished_at, new.committed_at, new.cancel_requested, new.transition_count, new.previous_status)
            or (old.rowid, old.reason, old.timeout_at) is not (new.rowid, new.reason, new.timeout_at)
            or new.result is not null or new.error is not null or new.last_error is not null
            or new.partial_result is not null or new.payload is not 'null' or new.tags is not null
            then raise(abort, 'tenure: erasure empties the content of a job, and changes nothing else')
    end;
end;
CREATE TRIGGER tenure_jobs_delete before delete on tenure_jobs
begin
    select case
        when (select writer from tenure_writer) is not 'retention'
            then raise(abort, 'tenure: only retention removes a job; use tenure prune')
        when old.finished_at is null
            then raise(abort, 'tenure: only a job that has ended can be removed')
    end;
end;
CREATE TRIGGER tenure_events_insert before insert on tenure_events
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_events where job_id = new.job_id and rev = new.rev)
    or (new.position > 0 and exists (select 1 from tenure_events where position = new.position))
    or (new.commits = 1 and exists (select 1 from tenure_events where job_id = new.job_id and commits = 1))
begin
    select case
        when (select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import'
            then raise(abort, 'tenure: only the store writes events')
        else raise(abort, 'tenure: a revision has one event and a job one commit; nothing replaces an event')
    end;
end;
CREATE TRIGGER tenure_events_update before update on tenure_events
begin
    select case
        when (old.position, old.job_id, old.rev, old.type, old.from_status, old.to_status, old.at, old.attempt)
            is not (new.position, new.job_id, new.rev, new.type, new.from_status, new.to_status, new.at, new.attempt)
            or (old.actor, old.request_id, old.cause, old.digest, old.until_at, old.commits, old.version)
            is not (new.actor, new.request_id, new.cause, new.digest, new.until_at, new.commits, new.version)
            then raise(abort, 'tenure: the log never changes')
        when new.detail is not old.detail and (
            new.detail is not null
            or not ifnull((select writer from tenure_writer) in ('retention', 'erasure'), 0)
        )
            then raise(abort, 'tenure: the log never changes; only retention and erasure empty the detail of an event')
    end;
end;
CREATE TRIGGER tenure_events_delete before delete on tenure_events
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes events, with their whole job; use tenure prune');
end;
CREATE TRIGGER tenure_policies_insert before insert on tenure_policies
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_policies where id = new.id or body = new.body)
begin
    select raise(abort, 'tenure: only the store adds a policy, and nothing replaces one');
end;
CREATE TRIGGER tenure_policies_update before update on tenure_policies
begin
    select raise(abort, 'tenure: a policy never changes; jobs of another policy name another one');
end;
CREATE TRIGGER tenure_policies_delete before delete on tenure_policies
begin
    select raise(abort, 'tenure: a policy is never removed; jobs name it');
end;
CREATE TRIGGER tenure_claims_insert before insert on tenure_claims
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_claims where request_id = new.request_id)
begin
    select raise(abort, 'tenure: only the store writes claims, and nothing replaces one');
end;
CREATE TRIGGER tenure_claims_update before update on tenure_claims
begin
    select raise(abort, 'tenure: a claim never changes');
end;
CREATE TRIGGER tenure_claims_delete before delete on tenure_claims
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes claims, with their jobs');
end;
CREATE TRIGGER tenure_deduplicated_requests_insert before insert on tenure_deduplicated_requests
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_deduplicated_requests where request_id = new.request_id)
begin
    select raise(abort, 'tenure: only the store writes deduplicated requests, and nothing replaces one');
end;
CREATE TRIGGER tenure_deduplicated_requests_update before update on tenure_deduplicated_requests
begin
    select raise(abort, 'tenure: a deduplicated request never changes');
end;
CREATE TRIGGER tenure_deduplicated_requests_delete before delete on tenure_deduplicated_requests
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes deduplicated requests, with their job');
end;
CREATE TRIGGER tenure_signals_insert before insert on tenure_signals
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_signals where job_id = new.job_id and rev = new.rev)
begin
    select raise(abort, 'tenure: only the store writes signals, and nothing replaces one');
end;
CREATE TRIGGER tenure_signals_update before update on tenure_signals
when (select writer from tenure_writer) is not 'erasure'
    or new.payload is not 'null'
    or (old.job_id, old.rev, old.name, old.at) is not (new.job_id, new.rev, new.name, new.at)
begin
    select raise(abort, 'tenure: a signal never changes; only erasure empties it');
end;
CREATE TRIGGER tenure_signals_delete before delete on tenure_signals
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes signals, with their job');
end;
CREATE TRIGGER tenure_dead_letters_insert before insert on tenure_dead_letters
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or (new.handled_at is not null and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_dead_letters where job_id = new.job_id)
begin
    select raise(abort, 'tenure: only the store writes dead letters, and nothing replaces one');
end;
CREATE TRIGGER tenure_dead_letters_update before update on tenure_dead_letters
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
CREATE TRIGGER tenure_dead_letters_delete before delete on tenure_dead_letters
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes dead letters, with their job');
end;
CREATE TRIGGER tenure_operator_log_insert before insert on tenure_operator_log
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_operator_log where id = new.id)
begin
    select raise(abort, 'tenure: only the store writes the operators'' log, and nothing replaces an entry');
end;
CREATE TRIGGER tenure_operator_log_update before update on tenure_operator_log
begin
    select raise(abort, 'tenure: the operators'' log never changes');
end;
CREATE TRIGGER tenure_operator_log_delete before delete on tenure_operator_log
begin
    select raise(abort, 'tenure: the operators'' log never changes');
end;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('tenure_events',53);
COMMIT;
