-- Moves the positions of streams, and renews or releases their leases. Guard: the token, and a lease that runs. A stream
-- without a row has lost its lease.
update tenure_pending
set head_at = case when given.attempts = 0 then null
        when tenure_pending.position < given.position then :now
        else ifnull(head_at, :now) end,
    position = max(tenure_pending.position, given.position),
    attempts = given.attempts,
    owner = case when given.keep then owner end,
    token = case when given.keep then tenure_pending.token end,
    due_at = given.due_at
from (
    select json_extract(value, '$.endpoint') as endpoint,
        json_extract(value, '$.aggregate') as aggregate,
        json_extract(value, '$.only_sequence') as only_sequence,
        json_extract(value, '$.token') as token,
        json_extract(value, '$.position') as position,
        json_extract(value, '$.attempts') as attempts,
        json_extract(value, '$.keep') as keep,
        json_extract(value, '$.due_at') as due_at
    from json_each(:settlements)
) given
where tenure_pending.endpoint = given.endpoint
    and tenure_pending.aggregate = given.aggregate
    and tenure_pending.only_sequence = given.only_sequence
    and tenure_pending.token = given.token
    and tenure_pending.due_at > :now
returning endpoint, aggregate, only_sequence
