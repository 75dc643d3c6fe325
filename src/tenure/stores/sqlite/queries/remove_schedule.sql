-- Remove a schedule. No row means that there was none.
delete from tenure_schedules
where name = :name
