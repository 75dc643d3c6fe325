-- The budget of a run. No row: it has not reserved yet.
select budget.root_id, budget.unit, budget.limit_amount, budget.spent, budget.on_lost_spend
from tenure.budgets budget
where budget.root_id = :root_id::uuid
order by budget.unit
