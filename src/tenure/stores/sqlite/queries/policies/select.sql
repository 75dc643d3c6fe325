-- One policy. No row: the file has lost it.
select body
from tenure_policies
where id = :id
