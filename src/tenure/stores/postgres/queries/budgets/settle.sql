-- Charges what a recorded step has spent, and ends its reservation. The caller has locked the budget and written the step in
-- this transaction. No row: nothing was spent of a limited unit.
with ended as (
    delete from tenure.reservations
    where root_id = :root_id::uuid and job_id = :job_id::uuid and attempt = :attempt::integer and key = :key::text
)
update tenure.budgets budget
set spent = budget.spent + charge.amount
from unnest(:units::text[], :amounts::bigint[]) charge(unit, amount)
where budget.root_id = :root_id::uuid and budget.unit = charge.unit
returning budget.unit
