-- A page of the rows that have one job's events, in the order of the log.
select
    event.position, job.correlation_id, job.trace,
    -- each event column: event.{}
from tenure_events event indexed by tenure_events_job
join tenure_jobs job on job.id = event.job_id
where event.job_id = :job_id
    and event.position > :after
    and (:types is null or event.type in (select value from json_each(:types)))
    and (not :starts_alone or event.type <> 'claimed' or event.to_status = 'running')
    and (:correlation_id is null or ifnull(job.correlation_id, job.id) = :correlation_id)
    and (:since is null or event.at >= :since)
    and (:until is null or event.at < :until)
order by event.rev
limit :limit
