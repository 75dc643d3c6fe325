-- Deletes expired rate usage of any queue.
delete from tenure_rate_usage
where (queue, key) in (
        select queue, key
        from tenure_rate_usage
        where until_at <= :before
        limit :limit
    )
