-- Empties the detail of these events.
update tenure_events
set detail = null
where position in (select value from json_each(:positions))
