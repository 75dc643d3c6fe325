-- Deletes expired rate usage of any queue. Returns how many rows.
with doomed as materialized (
    select usage.queue, usage.key
    from tenure.rate_usage usage
    where usage.until_at <= :before::timestamptz
    limit :limit
    for update skip locked
),
deleted as (
    delete from tenure.rate_usage usage
    using doomed
    where usage.queue = doomed.queue and usage.key = doomed.key
    returning 1
)
select count(*) from deleted
