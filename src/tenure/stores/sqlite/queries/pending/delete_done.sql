-- Removes a stream that is done. Guard: the token, and a lease that runs. No row: the lease is lost, or more is pending.
delete from tenure_pending
where endpoint = :endpoint and aggregate = :aggregate and only_sequence = :only_sequence
    and token = :token
    and due_at > :now
    and last_sequence <= :position
