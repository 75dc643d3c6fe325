-- Marks dead letters as redriven or discarded, once, and records the actor. Locks are taken in the order of ids.
-- The session must be set to write as the store. Returns how many were open.
with open as materialized (
    select letter.job_id
    from tenure.dead_letters letter
    where letter.job_id = any (:ids::uuid[])
      and letter.handled_at is null
    order by letter.job_id
    for no key update
),
marked as (
    update tenure.dead_letters letter
    set handled_at = greatest(tenure.clock(), letter.at), handled_as = :how::text
    from open
    where letter.job_id = open.job_id
    returning letter.job_id
),
noted as (
    insert into tenure.operator_log (actor, action, job_id)
    select :actor::text, :how::text, marked.job_id
    from marked
)
select count(*) from marked
