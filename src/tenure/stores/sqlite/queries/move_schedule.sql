-- Move a schedule on, in the transaction that adds its jobs.
-- Guard: its revision, that it is not paused, and a clock that has reached the last of these due times. No row means
-- that the guard did not hold.
update tenure_schedules
set rev = rev + 1,
    last_at = :until,
    next_at = :next_at
where name = :name
    and rev = :rev
    and paused_at is null
    and next_at <= :until
    and :until <= :now
