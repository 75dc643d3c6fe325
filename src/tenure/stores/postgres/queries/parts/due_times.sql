    select clock.now, due.at as due_at, case when due.at > clock.now then due.at end as until_at,
        least(due.at + :queued_ms::bigint * interval '1 millisecond',
            clock.now + :deadline_ms::bigint * interval '1 millisecond', tenure.inherited_deadline(:tags::text)) as timeout_at
    from (select tenure.clock() as now) clock
    cross join lateral (
        select greatest(clock.now,
            coalesce(:due_at::timestamptz, clock.now + :delay_ms::bigint * interval '1 millisecond')) as at
    ) due
