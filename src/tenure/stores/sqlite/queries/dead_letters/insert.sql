-- Inserts a job's dead letter, after its event. The last owner and lease come from the log.
insert into tenure_dead_letters (
    job_id, reason_code, stage, last_error, attempts, at, last_owner, last_lease_expires_at, correlation_id
)
values (
    :job_id,
    :reason_code,
    :stage,
    :last_error,
    :attempts,
    :at,
    (
        select substr(actor, instr(actor, ':') + 1)
        from tenure_events
        where job_id = :job_id and type = 'claimed'
        order by rev desc
        limit 1
    ),
    (
        select until_at
        from tenure_events
        where job_id = :job_id and type in ('claimed', 'heartbeat') and until_at is not null
        order by rev desc
        limit 1
    ),
    :correlation_id
)
