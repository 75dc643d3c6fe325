-- Mark a dead letter as dealt with. Nothing changes when somebody has done that before, or there is none.
update tenure_dead_letters
set handled_at = max(:at, at), handled_as = :how
where job_id = :job_id
    and handled_at is null
