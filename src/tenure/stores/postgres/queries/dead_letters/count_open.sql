-- The database's clock, and how many dead letters nobody has dealt with.
select tenure.clock() as at, (select count(*) from tenure.dead_letters where handled_at is null) as dead_letters
