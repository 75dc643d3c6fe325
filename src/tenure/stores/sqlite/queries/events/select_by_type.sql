-- A page of the rows that have events of some types, in the order of the log. The inner query reads only the index, unless
-- starts are wanted and claims are not.
select
    event.position, job.correlation_id, job.trace,
    -- each event column: event.{}
from tenure_events event
join tenure_jobs job on job.id = event.job_id
where event.position in (
    select typed.position
    from json_each(:types) wanted
    cross join tenure_events typed indexed by tenure_events_type on typed.type = wanted.value
    where typed.position > :after
        and typed.at >= :since
        and typed.at < :until
        and (not :starts_alone or typed.type <> 'claimed' or typed.to_status = 'running')
    order by typed.position
    limit :limit
)
order by event.position
