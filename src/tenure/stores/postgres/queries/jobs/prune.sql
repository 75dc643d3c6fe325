-- Removes finished jobs of a status and kind that ended up to a time, with their records, from a range of ids. Locked rows
-- are skipped.
-- The session must be set to write as retention. Returns how many jobs were deleted, and the claims that took them.
with doomed as materialized (
    select job.id
    from tenure.jobs job
    where job.id > :after::uuid and job.id <= :until::uuid
      and job.status = :status::text and job.kind = :kind::text and job.finished_at <= :before::timestamptz
    order by job.id
    limit :limit
    for update skip locked
),
claimed as materialized (
    select distinct event.request_id
    from tenure.events event
    join doomed on doomed.id = event.job_id
    where event.type = 'claimed'
),
events as (delete from tenure.events using doomed where job_id = doomed.id),
letters as (delete from tenure.dead_letters using doomed where job_id = doomed.id),
signals as (delete from tenure.signals using doomed where job_id = doomed.id),
steps as (delete from tenure.steps using doomed where job_id = doomed.id),
budgets as (delete from tenure.budgets using doomed where root_id = doomed.id),
reservations as (delete from tenure.reservations using doomed where root_id = doomed.id),
artifacts as (delete from tenure.artifacts using doomed where job_id = doomed.id),
deduplicated as (delete from tenure.deduplicated_requests using doomed where job_id = doomed.id),
jobs as (delete from tenure.jobs job using doomed where job.id = doomed.id returning job.id)
select (select count(*) from jobs) as removed, array(select claimed.request_id from claimed) as claims
