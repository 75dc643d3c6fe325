-- Messages that were last delivered up to a time, are pending and dead for no endpoint, and belong to no job that is kept:
-- the log of a job has their digest.
select message.sequence, message.aggregate
-- part: delivered
order by message.sequence
limit :limit
