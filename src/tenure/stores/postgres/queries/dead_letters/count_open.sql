-- The database's clock, and how many dead letters are not handled.
select tenure.clock() as at, (select count(*) from tenure.dead_letters where handled_at is null) as dead_letters
