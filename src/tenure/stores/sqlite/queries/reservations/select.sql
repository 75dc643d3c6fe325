-- The reservations of a run and its children. One is live while its attempt has the lease.
select reservation.unit, reservation.job_id, reservation.attempt, reservation.key, reservation.amount,
    exists (
        select 1 from tenure_jobs job
        where job.id = reservation.job_id and job.attempt = reservation.attempt and job.token is not null
    ) as is_live
from tenure_reservations reservation
where reservation.root_id = :root_id
