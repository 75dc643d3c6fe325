-- The budget of a run. No row: it has not reserved yet.
select unit, limit_amount, spent, on_lost_spend
from tenure_budgets
where root_id = :root_id
order by unit
