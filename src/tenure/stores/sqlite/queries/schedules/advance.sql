-- Advances a schedule, in the transaction that inserts its jobs.
-- Guard: its revision, not paused, and a clock that has reached the last of the due times.
-- No row: the guard did not hold.
update tenure_schedules
set rev = rev + 1,
    last_at = :until,
    next_at = :next_at
where name = :name
    and rev = :rev
    and paused_at is null
    and next_at <= :until
    and :until <= :now
