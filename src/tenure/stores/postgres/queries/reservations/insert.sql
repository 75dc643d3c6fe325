-- Reserves amounts for a call. The caller has locked the budget and found room in it. No row: a repetition of the same.
insert into tenure.reservations (root_id, unit, job_id, attempt, key, amount)
select :root_id, given.unit, :job_id, :attempt, :key, given.amount
from unnest(:units::text[], :amounts::bigint[]) given(unit, amount)
on conflict do nothing
returning unit
