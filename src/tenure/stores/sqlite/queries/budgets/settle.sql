-- Charges what a recorded step has spent of a unit. The step is written in this transaction. No row: the unit has no limit.
update tenure_budgets
set spent = spent + :amount
where root_id = :root_id and unit = :unit
