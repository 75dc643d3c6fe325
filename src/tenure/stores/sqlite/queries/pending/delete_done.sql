-- Removes streams that are done. Guard: the token, and a lease that runs. A stream without a row has lost its lease, or more
-- of it is pending.
delete from tenure_pending
where (endpoint, aggregate, only_sequence) in (
    select pending.endpoint, pending.aggregate, pending.only_sequence
    from json_each(:settlements) given
    cross join tenure_pending pending
    where pending.endpoint = json_extract(given.value, '$.endpoint')
        and pending.aggregate = json_extract(given.value, '$.aggregate')
        and pending.only_sequence = json_extract(given.value, '$.only_sequence')
        and pending.token = json_extract(given.value, '$.token')
        and pending.due_at > :now
        and pending.last_sequence <= json_extract(given.value, '$.position')
)
returning endpoint, aggregate, only_sequence
