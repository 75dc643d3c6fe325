-- How many dead letters nobody has dealt with.
select count(*)
from tenure_dead_letters
where handled_at is null
