-- Whether a message with this id is in the outbox. No row: it is not.
select 1
from tenure_outbox
where id = :id
