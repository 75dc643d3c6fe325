-- Reserves an amount for a call, for which the budget was found to have room. A repetition of the same writes nothing.
insert into tenure_reservations (root_id, unit, job_id, attempt, key, amount)
select :root_id, :unit, :job_id, :attempt, :key, :amount
where not exists (
    select 1 from tenure_reservations
    where (root_id, unit, job_id, attempt, key) = (:root_id, :unit, :job_id, :attempt, :key)
)
