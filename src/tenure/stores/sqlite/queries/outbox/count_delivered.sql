-- How many messages were last delivered up to a time, are pending and dead for no endpoint, and belong to no job that is
-- kept.
select count(*)
-- part: delivered
