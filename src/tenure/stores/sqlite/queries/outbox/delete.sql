-- Removes messages that retention removes.
delete from tenure_outbox
where sequence in (select value from json_each(:sequences))
