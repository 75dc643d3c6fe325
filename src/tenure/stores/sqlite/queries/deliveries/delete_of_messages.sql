-- Removes the deliveries of messages that retention removes.
delete from tenure_deliveries
where sequence in (select value from json_each(:sequences))
