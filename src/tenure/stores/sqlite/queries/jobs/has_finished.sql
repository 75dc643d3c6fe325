-- Whether the file has this many finished jobs.
select exists (
    select 1
    from tenure_jobs indexed by tenure_jobs_finished
    where finished_at is not null
    limit 1
    offset :jobs - 1
)
