-- Say who writes, until the gate is closed in the same transaction.
update tenure_gate
set writer = :writer
