-- Deletes the reservations of these runs and their children.
delete from tenure_reservations
where root_id in (select value from json_each(:ids))
