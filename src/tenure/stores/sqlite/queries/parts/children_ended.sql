    -- Waits for children, is not due, and at most `children_max` of its awaited children are live.
    and job.children_max is not null
    and (job.due_at is null or job.due_at > :now)
    and (
        select count(*)
        from tenure_jobs child indexed by tenure_jobs_awaited
        where child.parent_id = job.id and child.awaited = 1 and child.finished_at is null
    ) <= job.children_max
