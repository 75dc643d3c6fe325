-- Deletes expired rate usage of a queue's partitions, at most 100 rows.
delete from tenure_rate_usage
where queue = :queue
    and key in (
        select lapsed.key
        from tenure_rate_usage lapsed
        where lapsed.queue = :queue and lapsed.until_at <= :now
        order by lapsed.until_at
        limit 100
    )
