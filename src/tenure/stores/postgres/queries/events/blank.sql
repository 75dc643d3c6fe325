-- Blanks the detail of old progress events whose place a later progress or claim has taken. Answers how many.
with stale as (
    select event.job_id, event.rev
    from tenure.events event
    where event.at <= :before::timestamptz
      and event.type = 'progress'
      and event.detail is not null
      and exists (
        select from tenure.events later
        where later.job_id = event.job_id and later.rev > event.rev and later.type in ('progress', 'claimed')
      )
    limit :limit
),
blanked as (
    update tenure.events event
    set detail = null
    from stale
    where event.job_id = stale.job_id and event.rev = stale.rev
    returning 1
)
select count(*) from blanked
