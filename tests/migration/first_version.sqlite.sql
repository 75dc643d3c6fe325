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
CREATE TABLE tenure_budgets (
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
CREATE TABLE tenure_claims (
    request_id text not null primary key,
    body text not null,
    job_ids text not null,
    at integer not null
) without rowid;
INSERT INTO "tenure_claims" VALUES('request-1-57add0efb5','[["default"],["released"],1,"worker-1",true,"pool"]','["01a1f1a8-3044-7196-901e-a66c69bc0066"]',1795055693894925);
INSERT INTO "tenure_claims" VALUES('request-12-420ec45e0f','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1f1a8-30af-74b5-9a91-dd4383d5d41b"]',1795055694001949);
INSERT INTO "tenure_claims" VALUES('request-14-0cc6fc4354','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1f1a8-30b9-75f9-ac05-794952a90c18"]',1795055694010756);
INSERT INTO "tenure_claims" VALUES('request-16-f39d1b9649','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1f1a8-30bd-759f-87a4-e03a57b91083"]',1795055694014567);
INSERT INTO "tenure_claims" VALUES('request-18-b71c0b32a4','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1f1a8-30bf-75aa-a39f-29fb311f7d51"]',1795055694016526);
INSERT INTO "tenure_claims" VALUES('request-2-cba5738c8a','[["default"],["mail"],1,"worker-1",false,"pool"]','["01a1f1a8-3071-7567-8d15-d194836e7bf9"]',1795055693949145);
INSERT INTO "tenure_claims" VALUES('request-20-04752095d2','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1f1a8-30c2-73dc-8669-337ec3435aca"]',1795055694019157);
INSERT INTO "tenure_claims" VALUES('request-23-8b3c6fb211','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1f1a8-30c6-7067-a307-378ee5f3ed3f"]',1795055694028339);
INSERT INTO "tenure_claims" VALUES('request-3-f91dce0541','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1f1a8-3083-7794-9b5a-b54d7c27db19"]',1795055693957116);
INSERT INTO "tenure_claims" VALUES('request-4-b6a23a871c','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1f1a8-3087-7414-9277-8cc1dd2e7a37"]',1795055693964769);
INSERT INTO "tenure_claims" VALUES('request-7-61f1ae98ce','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1f1a8-3093-771a-9a34-bc3d8b63afa0"]',1795055693972583);
INSERT INTO "tenure_claims" VALUES('request-9-1d1ef5ea67','[["default"],["mail"],1,"worker-1",true,"pool"]','["01a1f1a8-309a-762a-bd7f-2e1f79463afc"]',1795055693986353);
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
    correlation_id text not null,
    handled_at integer,
    handled_as text,
    constraint "tenure: a handled dead letter has handled_at and handled_as" check (
        case when handled_at is null then handled_as is null else ifnull(handled_as in ('redriven', 'discarded'), 0) end
    )
) without rowid;
INSERT INTO "tenure_dead_letters" VALUES('01a1f1a8-30c6-7067-a307-378ee5f3ed3f','validation_failed','input','{"type":"ValueError","message":"no"}',1,1795055694032623,'worker-1',1795055754028339,'01a1f1a8-30c6-7067-a307-378ee5f3ed3f',NULL,NULL);
CREATE TABLE tenure_deduplicated_requests (
    request_id text not null primary key,
    digest text not null,
    detail text,
    job_id text not null,
    at integer not null
) without rowid;
CREATE TABLE tenure_deliveries (
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
CREATE TABLE tenure_endpoints (
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
INSERT INTO "tenure_events" VALUES(1,'01a1f1a8-3020-74bf-a7f6-b43904bbbb32',1,'enqueued',NULL,'queued',1795055693857212,0,'client:ada','01a1f1a8-3020-74bf-a7f6-b43904bbbb32',NULL,NULL,'RqGbD_UAcqwEceVjtgIf8Q',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(2,'01a1f1a8-302d-72e5-bcd5-b110ed7201e1',1,'enqueued',NULL,'queued',1795055693869396,0,'client:ada','01a1f1a8-302d-72e5-bcd5-b110ed7201e1',NULL,NULL,'3fs6hkfC5i7v-NmktkQGJg',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(3,'01a1f1a8-3031-7734-8350-5c43a6650797',1,'enqueued',NULL,'queued',1795055693878600,0,'client:ada','01a1f1a8-3031-7734-8350-5c43a6650797',NULL,NULL,'2H1gdPuUKmqcZhv-zfgHig',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(4,'01a1f1a8-3044-7196-901e-a66c69bc0066',1,'enqueued',NULL,'queued',1795055693892503,0,'client:ada','01a1f1a8-3044-7196-901e-a66c69bc0066',NULL,NULL,'d4D1gfYqJXN3IY3zXn30RQ',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(5,'01a1f1a8-3044-7196-901e-a66c69bc0066',3,'claimed','queued','running',1795055693894925,1,'pool:worker-1','request-1-57add0efb5',NULL,NULL,NULL,1795055753894925,0,1,NULL);
INSERT INTO "tenure_events" VALUES(6,'01a1f1a8-3071-7567-8d15-d194836e7bf9',1,'enqueued',NULL,'queued',1795055693938129,0,'client:ada','01a1f1a8-3071-7567-8d15-d194836e7bf9',NULL,NULL,'iAbatL65sPFwlssl2GlECg',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(7,'01a1f1a8-3071-7567-8d15-d194836e7bf9',2,'claimed','queued','claimed',1795055693949145,1,'pool:worker-1','request-2-cba5738c8a',NULL,NULL,NULL,1795055753949145,0,1,NULL);
INSERT INTO "tenure_events" VALUES(8,'01a1f1a8-3083-7794-9b5a-b54d7c27db19',1,'enqueued',NULL,'queued',1795055693956166,0,'client:ada','01a1f1a8-3083-7794-9b5a-b54d7c27db19',NULL,NULL,'iAbatL65sPFwlssl2GlECg',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(9,'01a1f1a8-3083-7794-9b5a-b54d7c27db19',3,'claimed','queued','running',1795055693957116,1,'pool:worker-1','request-3-f91dce0541',NULL,NULL,NULL,1795055753957116,0,1,NULL);
INSERT INTO "tenure_events" VALUES(10,'01a1f1a8-3087-7414-9277-8cc1dd2e7a37',1,'enqueued',NULL,'queued',1795055693959237,0,'client:ada','01a1f1a8-3087-7414-9277-8cc1dd2e7a37',NULL,NULL,'iAbatL65sPFwlssl2GlECg',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(11,'01a1f1a8-3087-7414-9277-8cc1dd2e7a37',3,'claimed','queued','running',1795055693964769,1,'pool:worker-1','request-4-b6a23a871c',NULL,NULL,NULL,1795055753964769,0,1,NULL);
INSERT INTO "tenure_events" VALUES(12,'01a1f1a8-3087-7414-9277-8cc1dd2e7a37',4,'progress','running','running',1795055693968542,1,'runner:worker-1','request-5-62d2ffa9e7',NULL,'{"percent":40,"message":"almost"}','kLGAt6jwfhR9HRjR0ilbVQ',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(13,'01a1f1a8-3087-7414-9277-8cc1dd2e7a37',5,'heartbeat','running','running',1795055693970690,1,'runner:worker-1','request-6-d19010cdc6',NULL,NULL,NULL,NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(14,'01a1f1a8-3093-771a-9a34-bc3d8b63afa0',1,'enqueued',NULL,'queued',1795055693971378,0,'client:ada','01a1f1a8-3093-771a-9a34-bc3d8b63afa0',NULL,NULL,'iAbatL65sPFwlssl2GlECg',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(15,'01a1f1a8-3093-771a-9a34-bc3d8b63afa0',3,'claimed','queued','running',1795055693972583,1,'pool:worker-1','request-7-61f1ae98ce',NULL,NULL,NULL,1795055753972583,0,1,NULL);
INSERT INTO "tenure_events" VALUES(16,'01a1f1a8-3093-771a-9a34-bc3d8b63afa0',4,'suspended','running','waiting',1795055693975894,1,'runner:worker-1','request-8-0b0a990bdb',NULL,'{"seen_rev":0,"waiting_for":"signal"}',NULL,NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(17,'01a1f1a8-309a-762a-bd7f-2e1f79463afc',1,'enqueued',NULL,'queued',1795055693979004,0,'client:ada','01a1f1a8-309a-762a-bd7f-2e1f79463afc',NULL,NULL,'iAbatL65sPFwlssl2GlECg',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(18,'01a1f1a8-309a-762a-bd7f-2e1f79463afc',3,'claimed','queued','running',1795055693986353,1,'pool:worker-1','request-9-1d1ef5ea67',NULL,NULL,NULL,1795055753986353,0,1,NULL);
INSERT INTO "tenure_events" VALUES(19,'01a1f1a8-309a-762a-bd7f-2e1f79463afc',4,'retry_scheduled','running','retry',1795055693988400,1,'runner:worker-1','request-10-4d66b9888f','ValueError','{"error":{"type":"ValueError","message":"no"},"delay_seconds":3600.0}','JLDoV2gEM0YirfVeqBQUrA',1795059293988400,0,1,NULL);
INSERT INTO "tenure_events" VALUES(20,'01a1f1a8-3044-7196-901e-a66c69bc0066',4,'released','running','stalled',1795055693991277,1,'runner:worker-1','request-11-1861a19d64',NULL,NULL,NULL,NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(21,'01a1f1a8-30af-74b5-9a91-dd4383d5d41b',1,'enqueued',NULL,'queued',1795055693999888,0,'client:ada','01a1f1a8-30af-74b5-9a91-dd4383d5d41b',NULL,NULL,'iAbatL65sPFwlssl2GlECg',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(22,'01a1f1a8-30af-74b5-9a91-dd4383d5d41b',3,'claimed','queued','running',1795055694001949,1,'pool:worker-1','request-12-420ec45e0f',NULL,NULL,NULL,1795055754001949,0,1,NULL);
INSERT INTO "tenure_events" VALUES(23,'01a1f1a8-30af-74b5-9a91-dd4383d5d41b',4,'succeeded','running','succeeded',1795055694007713,1,'runner:worker-1','request-13-26e4601d06',NULL,NULL,'WL9bVHjl0ft0Qdrv-f0e1g',NULL,1,1,NULL);
INSERT INTO "tenure_events" VALUES(24,'01a1f1a8-30b9-75f9-ac05-794952a90c18',1,'enqueued',NULL,'queued',1795055694010129,0,'client:ada','01a1f1a8-30b9-75f9-ac05-794952a90c18',NULL,NULL,'iAbatL65sPFwlssl2GlECg',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(25,'01a1f1a8-30b9-75f9-ac05-794952a90c18',3,'claimed','queued','running',1795055694010756,1,'pool:worker-1','request-14-0cc6fc4354',NULL,NULL,NULL,1795055754010756,0,1,NULL);
INSERT INTO "tenure_events" VALUES(26,'01a1f1a8-30b9-75f9-ac05-794952a90c18',4,'committed','running','running',1795055694013202,1,'runner:worker-1','request-15-d8e437472d',NULL,NULL,'TLelzlwIpXUTQ4wN4Yu5NQ',NULL,1,1,NULL);
INSERT INTO "tenure_events" VALUES(27,'01a1f1a8-30bd-759f-87a4-e03a57b91083',1,'enqueued',NULL,'queued',1795055694014044,0,'client:ada','01a1f1a8-30bd-759f-87a4-e03a57b91083',NULL,NULL,'iAbatL65sPFwlssl2GlECg',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(28,'01a1f1a8-30bd-759f-87a4-e03a57b91083',3,'claimed','queued','running',1795055694014567,1,'pool:worker-1','request-16-f39d1b9649',NULL,NULL,NULL,1795055754014567,0,1,NULL);
INSERT INTO "tenure_events" VALUES(29,'01a1f1a8-30bd-759f-87a4-e03a57b91083',4,'committed','running','running',1795055694015239,1,'runner:worker-1','request-17-f8e6e60241',NULL,NULL,'a4ayc_80_OGda4BO_1o_Vw',NULL,1,1,NULL);
INSERT INTO "tenure_events" VALUES(30,'01a1f1a8-30bd-759f-87a4-e03a57b91083',5,'succeeded','running','succeeded',1795055694015239,1,'runner:worker-1','request-17-f8e6e60241',NULL,NULL,'a4ayc_80_OGda4BO_1o_Vw',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(31,'01a1f1a8-30bf-75aa-a39f-29fb311f7d51',1,'enqueued',NULL,'queued',1795055694015968,0,'client:ada','01a1f1a8-30bf-75aa-a39f-29fb311f7d51',NULL,NULL,'iAbatL65sPFwlssl2GlECg',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(32,'01a1f1a8-30bf-75aa-a39f-29fb311f7d51',3,'claimed','queued','running',1795055694016526,1,'pool:worker-1','request-18-b71c0b32a4',NULL,NULL,NULL,1795055754016526,0,1,NULL);
INSERT INTO "tenure_events" VALUES(33,'01a1f1a8-30bf-75aa-a39f-29fb311f7d51',4,'failed','running','failed',1795055694017732,1,'runner:worker-1','request-19-b367170c2d',NULL,'{"error":{"type":"ValueError","message":"no"}}','JLDoV2gEM0YirfVeqBQUrA',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(34,'01a1f1a8-30c2-73dc-8669-337ec3435aca',1,'enqueued',NULL,'queued',1795055694018656,0,'client:ada','01a1f1a8-30c2-73dc-8669-337ec3435aca',NULL,NULL,'iAbatL65sPFwlssl2GlECg',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(35,'01a1f1a8-30c2-73dc-8669-337ec3435aca',3,'claimed','queued','running',1795055694019157,1,'pool:worker-1','request-20-04752095d2',NULL,NULL,NULL,1795055754019157,0,1,NULL);
INSERT INTO "tenure_events" VALUES(36,'01a1f1a8-30c2-73dc-8669-337ec3435aca',4,'halted','running','halted',1795055694019806,1,'runner:worker-1','request-21-d202183483','too dear',NULL,'CAqe1ChVnvYCZotMAPEU8Q',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(37,'01a1f1a8-302d-72e5-bcd5-b110ed7201e1',2,'cancelled','queued','cancelled',1795055694020405,0,'client:ada','request-22-87e612cd4d',NULL,NULL,NULL,NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(38,'01a1f1a8-30c6-7067-a307-378ee5f3ed3f',1,'enqueued',NULL,'queued',1795055694022646,0,'client:ada','01a1f1a8-30c6-7067-a307-378ee5f3ed3f',NULL,NULL,'iAbatL65sPFwlssl2GlECg',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(39,'01a1f1a8-30c6-7067-a307-378ee5f3ed3f',3,'claimed','queued','running',1795055694028339,1,'pool:worker-1','request-23-8b3c6fb211',NULL,NULL,NULL,1795055754028339,0,1,NULL);
INSERT INTO "tenure_events" VALUES(40,'01a1f1a8-30c6-7067-a307-378ee5f3ed3f',4,'dead_lettered','running','dead_lettered',1795055694032623,1,'runner:worker-1','request-24-2d695ab649','validation_failed','{"error":{"type":"ValueError","message":"no"},"stage":"input"}','JLDoV2gEM0YirfVeqBQUrA',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(41,'01a1f1a8-3031-7734-8350-5c43a6650797',2,'signalled','queued','queued',1795055694039781,0,'client:ada','request-25-b3e385b611',NULL,'{"name":"go"}','eQJpm-Qsio5G-7tFAXJlFw',NULL,0,1,NULL);
INSERT INTO "tenure_events" VALUES(42,'01a1f1a8-3031-7734-8350-5c43a6650797',3,'cancel_requested','queued','queued',1795055694039781,0,'client:ada','request-25-b3e385b611',NULL,NULL,NULL,NULL,0,1,NULL);
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
INSERT INTO "tenure_jobs" VALUES('01a1f1a8-3020-74bf-a7f6-b43904bbbb32','queued',43481084082989,'default',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'queued',1,1795055693857212,1795055693857212,0,0,0,0,1795055693857212,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1f1a8-302d-72e5-bcd5-b110ed7201e1','cancelled',43481084082989,'default',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'cancelled',2,1795055693869396,1795055694020405,0,0,0,0,1795055693869396,NULL,NULL,NULL,NULL,NULL,NULL,1795055694020405,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,1,'queued',NULL,NULL,'requested',NULL,NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1f1a8-3031-7734-8350-5c43a6650797','signalled',43481084082989,'default',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'queued',3,1795055693878600,1795055694039781,0,0,0,0,1795055693878600,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'requested',2,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,2,'queued',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1f1a8-3044-7196-901e-a66c69bc0066','released',43481084082989,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'stalled',4,1795055693892503,1795055693991277,1,0,0,0,1795055693892503,NULL,NULL,NULL,NULL,NULL,1795055693894925,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,1,'running',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1f1a8-3071-7567-8d15-d194836e7bf9','mail',43481084082989,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'claimed',2,1795055693938129,1795055693949145,1,0,0,0,1795055693938129,'worker-1','de979229-ffb4-4db9-b160-747cee5f3b37',1795055753949145,1795055733949145,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,1,'queued',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1f1a8-3083-7794-9b5a-b54d7c27db19','mail',43481084082989,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'running',3,1795055693956166,1795055693957116,1,0,0,0,1795055693956166,'worker-1','fd245aec-c698-4435-90ad-b7444538c0c9',1795055753957116,1795055733957116,1795142093957116,1795055693957116,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,2,'queued',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1f1a8-3087-7414-9277-8cc1dd2e7a37','mail',43481084082989,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'running',5,1795055693959237,1795055693970690,1,0,0,0,1795055693959237,'worker-1','c5de63c9-922b-4a06-be9a-365d3fa5a36f',1795055753964769,1795055733970690,1795142093964769,1795055693964769,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,40,NULL,1,'running',NULL,'almost',NULL,NULL,NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1f1a8-3093-771a-9a34-bc3d8b63afa0','mail',43481084082989,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'waiting',4,1795055693971378,1795055693975894,1,0,0,0,NULL,NULL,NULL,NULL,NULL,NULL,1795055693972583,NULL,NULL,NULL,0,'signal',NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,1,'running',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1f1a8-309a-762a-bd7f-2e1f79463afc','mail',43481084082989,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'retry',4,1795055693979004,1795055693988400,1,1,0,0,1795059293988400,NULL,NULL,NULL,NULL,NULL,1795055693986353,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,1,'running',NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"type":"ValueError","message":"no"}','{}');
INSERT INTO "tenure_jobs" VALUES('01a1f1a8-30af-74b5-9a91-dd4383d5d41b','mail',43481084082989,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'succeeded',4,1795055693999888,1795055694007713,1,0,0,0,1795055693999888,NULL,NULL,NULL,NULL,NULL,1795055694001949,1795055694007713,1795055694007713,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,1,'running',NULL,NULL,NULL,NULL,'"done"',NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1f1a8-30b9-75f9-ac05-794952a90c18','mail',43481084082989,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'running',4,1795055694010129,1795055694013202,1,0,0,0,1795055694010129,'worker-1','2ab2e783-2606-42a2-9fda-6810ff43c4e6',1795055754010756,1795055734010756,1795142094010756,1795055694010756,NULL,1795055694013202,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,1,'running',NULL,NULL,NULL,'"kept"',NULL,NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1f1a8-30bd-759f-87a4-e03a57b91083','mail',43481084082989,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'succeeded',5,1795055694014044,1795055694015239,1,0,0,0,1795055694014044,NULL,NULL,NULL,NULL,NULL,1795055694014567,1795055694015239,1795055694015239,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,2,'running',NULL,NULL,NULL,NULL,'1',NULL,NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1f1a8-30bf-75aa-a39f-29fb311f7d51','mail',43481084082989,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'failed',4,1795055694015968,1795055694017732,1,1,0,0,1795055694015968,NULL,NULL,NULL,NULL,NULL,1795055694016526,1795055694017732,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,1,'running',NULL,NULL,NULL,NULL,NULL,NULL,'{"type":"ValueError","message":"no"}','{"type":"ValueError","message":"no"}','{}');
INSERT INTO "tenure_jobs" VALUES('01a1f1a8-30c2-73dc-8669-337ec3435aca','mail',43481084082989,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'halted',4,1795055694018656,1795055694019806,1,0,0,0,1795055694018656,NULL,NULL,NULL,NULL,NULL,1795055694019157,1795055694019806,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,1,'running',NULL,NULL,'too dear',NULL,NULL,'[1]',NULL,NULL,'{}');
INSERT INTO "tenure_jobs" VALUES('01a1f1a8-30c6-7067-a307-378ee5f3ed3f','mail',43481084082989,'default',30000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,'dead_lettered',4,1795055694022646,1795055694032623,1,1,0,0,1795055694022646,NULL,NULL,NULL,NULL,NULL,1795055694028339,1795055694032623,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,1,'running',NULL,NULL,'validation_failed',NULL,NULL,NULL,NULL,'{"type":"ValueError","message":"no"}','{}');
CREATE TABLE tenure_log_cursors (
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
CREATE TABLE tenure_meta (
    name text not null primary key,
    value integer not null
) without rowid;
INSERT INTO "tenure_meta" VALUES('min_code_version',1);
CREATE TABLE tenure_migrations (
    number integer primary key,
    name text not null,
    checksum text not null,
    applied_at integer not null
);
INSERT INTO "tenure_migrations" VALUES(1,'initial','9bff1c856bae3232',1795055693809980);
CREATE TABLE tenure_operator_log (
    id integer primary key autoincrement,
    at integer not null,
    actor text not null,
    action text not null,
    job_id text,
    detail text,
    published_at integer
);
CREATE TABLE tenure_outbox (
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
CREATE TABLE tenure_pending (
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
CREATE TABLE tenure_policies (
    id integer primary key,
    body text not null unique
);
INSERT INTO "tenure_policies" VALUES(43481084082989,'{"backoff":{"base_seconds":0.5,"factor":2.0,"max_seconds":14400.0},"budget":null,"deadline_seconds":null,"heartbeat_seconds":null,"lease_seconds":60.0,"max_attempts":20,"on_exhausted":"dead_letter","on_lost":"requeue","on_timeout":"retry","secret":null,"signals_max":null,"timeouts":{"claimed_seconds":null,"queued_seconds":null,"running_seconds":86400.0}}');
CREATE TABLE tenure_queues (
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
CREATE TABLE tenure_rate_usage (
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
CREATE TABLE tenure_reservations (
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
CREATE TABLE tenure_signals (
    job_id text not null,
    rev integer not null,
    name text not null,
    payload text not null,
    at integer not null,
    primary key (job_id, rev)
) without rowid;
INSERT INTO "tenure_signals" VALUES('01a1f1a8-3031-7734-8350-5c43a6650797',2,'go','7',1795055694039781);
CREATE TABLE tenure_steps (
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
CREATE TABLE tenure_streams (
    aggregate text not null primary key,
    at integer not null,
    constraint "tenure: times are integers within the years 1 to 9999" check (at between -62135510400000000 and 253402128000000000)
) without rowid;
CREATE TABLE tenure_subscriptions (
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
CREATE TABLE tenure_workers (
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
    where owner is null and finished_at is null and pinned_version is null;
CREATE INDEX tenure_jobs_pinned on tenure_jobs (pinned_version, queue, priority desc, due_at, id)
    where owner is null and finished_at is null and pinned_version is not null;
CREATE INDEX tenure_jobs_leased on tenure_jobs (queue, id)
    where owner is not null or status = 'stalled';
CREATE INDEX tenure_jobs_partitioned on tenure_jobs (queue, partition_key, priority desc, due_at, id)
    where owner is null and finished_at is null and pinned_version is null and partition_key is not null;
CREATE INDEX tenure_jobs_unleased_timeout on tenure_jobs (timeout_at)
    where owner is null and finished_at is null and timeout_at is not null;
CREATE UNIQUE INDEX tenure_jobs_dedupe on tenure_jobs (dedupe_key)
    where dedupe_key is not null and finished_at is null;
CREATE UNIQUE INDEX tenure_jobs_request on tenure_jobs (request_id)
    where request_id is not null;
CREATE INDEX tenure_jobs_correlation on tenure_jobs (correlation_id, id)
    where correlation_id is not null;
CREATE INDEX tenure_jobs_finished on tenure_jobs (status, kind, finished_at)
    where finished_at is not null;
CREATE INDEX tenure_jobs_unsuccessful on tenure_jobs (status, id)
    where status in ('failed', 'cancelled', 'halted', 'dead_lettered');
CREATE INDEX tenure_jobs_children on tenure_jobs (parent_id, id) where parent_id is not null;
CREATE INDEX tenure_jobs_awaited on tenure_jobs (parent_id) where awaited = 1 and finished_at is null;
CREATE INDEX tenure_jobs_awaiting on tenure_jobs (id) where children_max is not null;
CREATE UNIQUE INDEX tenure_events_job on tenure_events (job_id, rev);
CREATE UNIQUE INDEX tenure_events_one_commit on tenure_events (job_id) where commits = 1;
CREATE INDEX tenure_events_type on tenure_events (type, at);
CREATE INDEX tenure_events_verbose on tenure_events (at, position) where type = 'progress' and detail is not null;
CREATE VIEW tenure_log as
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
CREATE INDEX tenure_deduplicated_requests_job on tenure_deduplicated_requests (job_id);
CREATE UNIQUE INDEX tenure_steps_key on tenure_steps (job_id, key);
CREATE INDEX tenure_outbox_aggregate_sequence on tenure_outbox (aggregate, sequence) where aggregate is not null;
CREATE INDEX tenure_outbox_job on tenure_outbox (job_id) where job_id is not null;
CREATE INDEX tenure_outbox_at on tenure_outbox (at);
CREATE INDEX tenure_outbox_unserved on tenure_outbox (sequence) where endpoint_count = 0;
CREATE INDEX tenure_pending_due on tenure_pending (endpoint, due_at);
CREATE INDEX tenure_deliveries_stream on tenure_deliveries (endpoint, aggregate, sequence);
CREATE INDEX tenure_deliveries_message on tenure_deliveries (sequence);
CREATE INDEX tenure_deliveries_delivered on tenure_deliveries (at) where outcome = 'delivered';
CREATE INDEX tenure_deliveries_dead on tenure_deliveries (endpoint, number) where outcome = 'dead' and handled_at is null;
CREATE INDEX tenure_rate_usage_until on tenure_rate_usage (queue, until_at);
CREATE INDEX tenure_schedules_next on tenure_schedules (next_at, name) where next_at is not null and paused_at is null;
CREATE INDEX tenure_operator_log_unpublished on tenure_operator_log (id) where published_at is null;
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
CREATE TRIGGER tenure_jobs_origin before update of
    id, kind, policy_id, queue, priority, dedupe_key, request_id, correlation_id, trace, submitted_by, partition_key,
    parent_id, redrive_of, awaited, created_at
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
CREATE TRIGGER tenure_events_update before update on tenure_events
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
CREATE TRIGGER tenure_artifacts_insert before insert on tenure_artifacts
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_artifacts where job_id = new.job_id and name = new.name)
    or exists (select 1 from tenure_artifacts where rowid = new.rowid)
begin
    select raise(abort, 'tenure: only the store writes artifacts, and nothing replaces one');
end;
CREATE TRIGGER tenure_artifacts_update before update on tenure_artifacts
begin
    select raise(abort, 'tenure: an artifact never changes');
end;
CREATE TRIGGER tenure_artifacts_delete before delete on tenure_artifacts
when not ifnull((select writer from tenure_writer) in ('retention', 'erasure'), 0)
begin
    select raise(abort, 'tenure: only retention and erasure remove artifacts');
end;
CREATE TRIGGER tenure_steps_insert before insert on tenure_steps
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_steps where job_id = new.job_id and key = new.key)
    or exists (select 1 from tenure_steps where number = new.number)
begin
    select raise(abort, 'tenure: only the store writes steps, and nothing replaces one');
end;
CREATE TRIGGER tenure_steps_update before update on tenure_steps
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
CREATE TRIGGER tenure_steps_delete before delete on tenure_steps
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes steps, with their job');
end;
CREATE TRIGGER tenure_budgets_insert before insert on tenure_budgets
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_budgets where root_id = new.root_id and unit = new.unit)
begin
    select raise(abort, 'tenure: only the store writes budgets, and nothing replaces one');
end;
CREATE TRIGGER tenure_budgets_update before update on tenure_budgets
when (select writer from tenure_writer) is not 'store'
    or new.spent < old.spent
    or (old.root_id, old.unit, old.limit_amount, old.on_lost_spend)
    is not (new.root_id, new.unit, new.limit_amount, new.on_lost_spend)
begin
    select raise(abort, 'tenure: a budget never changes, and its spend only grows');
end;
CREATE TRIGGER tenure_budgets_delete before delete on tenure_budgets
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes budgets, with their run');
end;
CREATE TRIGGER tenure_reservations_insert before insert on tenure_reservations
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (
        select 1 from tenure_reservations
        where (root_id, unit, job_id, attempt, key) = (new.root_id, new.unit, new.job_id, new.attempt, new.key)
    )
begin
    select raise(abort, 'tenure: only the store writes reservations, and nothing replaces one');
end;
CREATE TRIGGER tenure_reservations_update before update on tenure_reservations
begin
    select raise(abort, 'tenure: a reservation never changes');
end;
CREATE TRIGGER tenure_reservations_delete before delete on tenure_reservations
when not ifnull((select writer from tenure_writer) in ('store', 'retention'), 0)
begin
    select raise(abort, 'tenure: only the store removes reservations');
end;
CREATE TRIGGER tenure_outbox_insert before insert on tenure_outbox
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_outbox where id = new.id)
    or exists (select 1 from tenure_outbox where sequence = new.sequence)
begin
    select raise(abort, 'tenure: only the store writes messages, and nothing replaces one');
end;
CREATE TRIGGER tenure_outbox_update before update on tenure_outbox
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
CREATE TRIGGER tenure_outbox_delete before delete on tenure_outbox
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes messages');
end;
CREATE TRIGGER tenure_deliveries_insert before insert on tenure_deliveries
when ((select writer from tenure_writer) is not 'store' and (select writer from tenure_writer) is not 'import')
    or exists (select 1 from tenure_deliveries where number = new.number)
begin
    select raise(abort, 'tenure: only the store writes deliveries, and nothing replaces one');
end;
CREATE TRIGGER tenure_deliveries_update before update on tenure_deliveries
when (select writer from tenure_writer) is not 'store' or old.handled_at is not null
    or (old.number, old.endpoint, old.aggregate, old.sequence, old.attempt, old.at)
    is not (new.number, new.endpoint, new.aggregate, new.sequence, new.attempt, new.at)
    or (old.outcome, old.status, old.duration_ms, old.error) is not (new.outcome, new.status, new.duration_ms, new.error)
begin
    select raise(abort, 'tenure: a delivery never changes; a dead one is handled once');
end;
CREATE TRIGGER tenure_deliveries_delete before delete on tenure_deliveries
when (select writer from tenure_writer) is not 'retention'
begin
    select raise(abort, 'tenure: only retention removes deliveries');
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
when (select writer from tenure_writer) is not 'store' or old.published_at is not null or new.published_at is null
    or (old.id, old.at, old.actor, old.action, old.job_id, old.detail)
        is not (new.id, new.at, new.actor, new.action, new.job_id, new.detail)
begin
    select raise(abort, 'tenure: the operators'' log never changes');
end;
CREATE TRIGGER tenure_operator_log_delete before delete on tenure_operator_log
begin
    select raise(abort, 'tenure: the operators'' log never changes');
end;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('tenure_events',42);
COMMIT;
