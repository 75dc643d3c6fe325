-- Whether a worker that was seen recently removes finished jobs.
select exists (
    select 1
    from tenure_workers
    where prunes = 1
        and stopped_at is null
        and seen_at > :seen_after
)
