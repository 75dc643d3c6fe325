-- Deletes a schedule. No row: there is none of this name.
delete from tenure_schedules
where name = :name
