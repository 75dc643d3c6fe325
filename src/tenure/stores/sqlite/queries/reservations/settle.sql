-- Ends the reservation of a call whose step is recorded in this transaction. No row: it has reserved nothing.
delete from tenure_reservations
where root_id = :root_id and job_id = :job_id and attempt = :attempt and key = :key
