-- Marks a dead letter as handled.
-- Guard: it is not handled yet. No row: it is, or the job has none.
update tenure_dead_letters
set handled_at = max(:at, at), handled_as = :how
where job_id = :job_id
    and handled_at is null
