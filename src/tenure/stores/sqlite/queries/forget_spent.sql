-- Forgets, a few rows at a time, what keys have spent of a rate whose time is over.
delete from tenure_limits
where queue = :queue
    and key in (
        select lapsed.key
        from tenure_limits lapsed
        where lapsed.queue = :queue and lapsed.until_at <= :now
        order by lapsed.until_at
        limit 100
    )
