-- Moves a stream's position, and renews or releases its lease. Guard: the token, and a lease that runs. No row: it is lost.
update tenure_pending
set head_at = case when :attempts = 0 then null when position < :position then :now else ifnull(head_at, :now) end,
    position = max(position, :position),
    attempts = :attempts,
    owner = case when :keep then owner end,
    token = case when :keep then token end,
    due_at = :due_at
where endpoint = :endpoint and aggregate = :aggregate and only_sequence = :only_sequence
    and token = :token
    and due_at > :now
