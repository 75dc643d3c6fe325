-- Writes one unit of the budget of a run, unless it is there.
insert into tenure_budgets (root_id, unit, limit_amount, spent, on_lost_spend)
select :root_id, :unit, :limit_amount, 0, :on_lost_spend
where not exists (select 1 from tenure_budgets where root_id = :root_id and unit = :unit)
