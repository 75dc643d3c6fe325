-- Writes the budget of a run. No row: another transaction has written it.
insert into tenure.budgets (root_id, unit, limit_amount, spent, on_lost_spend)
select :root_id, given.unit, given.limit_amount, 0, :on_lost_spend
from unnest(:units::text[], :limits::bigint[]) given(unit, limit_amount)
order by given.unit
on conflict (root_id, unit) do nothing
returning unit
