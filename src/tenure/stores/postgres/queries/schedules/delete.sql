-- Deletes a schedule, and records the actor. No row: there was none.
with removed as (
    delete from tenure.schedules schedule
    where schedule.name = :name::text
    returning schedule.name
),
noted as (
    insert into tenure.operator_log (actor, action, detail)
    select :actor::text, 'unschedule', :detail::text from removed
)
select * from removed
