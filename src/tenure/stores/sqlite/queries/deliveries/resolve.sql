-- Marks dead letters as redriven or discarded.
update tenure_deliveries
set handled_at = :now, handled_as = :how
where number in (select value from json_each(:numbers))
