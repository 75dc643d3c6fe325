-- Deletes the budgets of these runs.
delete from tenure_budgets
where root_id in (select value from json_each(:ids))
