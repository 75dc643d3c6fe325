-- The owner of a stream's lease. No row: it is another lease, or none.
select owner
from tenure_pending
where endpoint = :endpoint and aggregate = :aggregate and only_sequence = :only_sequence
    and token = :token
