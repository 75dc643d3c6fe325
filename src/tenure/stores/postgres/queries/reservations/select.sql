-- The reservations of a run and its children. One is live while its attempt has the lease.
select reservation.root_id, reservation.unit, reservation.job_id, reservation.attempt, reservation.key, reservation.amount,
    job.id is not null as is_live
from tenure.reservations reservation
left join lateral (
    select job.id
    from tenure.jobs job
    where job.id = reservation.job_id and job.attempt = reservation.attempt and job.token is not null
    limit 1
) job on true
where reservation.root_id = :root_id::uuid
