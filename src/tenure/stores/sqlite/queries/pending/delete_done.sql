-- Removes a stream that is done.
delete from tenure_pending
where endpoint = :endpoint and aggregate = :aggregate and only_sequence = :only_sequence
    and position >= last_sequence
