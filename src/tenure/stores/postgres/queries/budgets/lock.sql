-- Locks the budgets of these runs until the end of the transaction, before any job. No row: none of them has reserved yet.
select budget.root_id, budget.unit, budget.limit_amount, budget.spent, budget.on_lost_spend
from tenure.budgets budget
where budget.root_id = any (:root_ids::uuid[])
order by budget.root_id, budget.unit
for update
