-- Removes what the keys of a queue have spent.
delete from tenure_limits
where queue = :name
