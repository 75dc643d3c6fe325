-- Deletes the rate usage of a queue's partitions.
delete from tenure_rate_usage
where queue = :name
