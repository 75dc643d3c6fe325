-- Leases a stream, which the same transaction has found to be due.
update tenure_pending
set owner = :owner, token = :token, due_at = :until_at
where endpoint = :endpoint and aggregate = :aggregate and only_sequence = :only_sequence
