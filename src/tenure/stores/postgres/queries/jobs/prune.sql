-- Removes whole terminal jobs that ended before a time, with their records, and claims that have no job left.
-- The session must be set to write as retention. Returns how many jobs were deleted.
with doomed as materialized (
    select job.id
    from tenure.jobs job
    where job.finished_at <= :before::timestamptz
    order by job.id
    limit :limit
    for update skip locked
),
events as (delete from tenure.events using doomed where job_id = doomed.id),
letters as (delete from tenure.dead_letters using doomed where job_id = doomed.id),
signals as (delete from tenure.signals using doomed where job_id = doomed.id),
artifacts as (delete from tenure.artifacts using doomed where job_id = doomed.id),
steps as (delete from tenure.steps using doomed where job_id = doomed.id),
answers as (delete from tenure.deduplicated_requests using doomed where job_id = doomed.id),
claims as (
    delete from tenure.claims claim
    using (
        select distinct event.request_id
        from tenure.events event
        join doomed on doomed.id = event.job_id
        where event.type = 'claimed'
    ) won
    where claim.request_id = won.request_id
      and not exists (
        select from tenure.jobs job
        where job.id = any (claim.job_ids) and job.id not in (select doomed.id from doomed)
      )
),
jobs as (delete from tenure.jobs job using doomed where job.id = doomed.id returning job.id)
select count(*) from jobs
