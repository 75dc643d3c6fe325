-- The number of dead letters that are not handled.
select count(*)
from tenure_dead_letters
where handled_at is null
