-- One policy. No row means that the file lost it.
select body
from tenure_policies
where id = :id
