-- Whether the outbox has a message of this id. No row: it has none.
select 1
from tenure_outbox
where id = :id
