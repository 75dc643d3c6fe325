-- The reservations of a run and its children. One is live while its attempt has the lease.
select reservation.root_id, reservation.unit, reservation.job_id, reservation.attempt, reservation.key, reservation.amount,
    exists (
        select from tenure.jobs job
        where job.id = reservation.job_id and job.attempt = reservation.attempt and job.token is not null
    ) as is_live
from tenure.reservations reservation
where reservation.root_id = :root_id::uuid
