-- A page of dead letters in the order of their jobs' ids, after the given id. A null filter matches all.
select
    -- each dead letter column: letter.{}
from tenure_dead_letters letter
join tenure_jobs job on job.id = letter.job_id
where letter.job_id > :after
    and (:handled or letter.handled_at is null)
    and (:reason_codes is null or letter.reason_code in (select value from json_each(:reason_codes)))
    and (:stages is null or letter.stage in (select value from json_each(:stages)))
    and (:kinds is null or job.kind in (select value from json_each(:kinds)))
    and (:queues is null or job.queue in (select value from json_each(:queues)))
    and (:correlation_id is null or letter.correlation_id = :correlation_id)
    and (:dead_from is null or letter.at >= :dead_from)
    and (:dead_until is null or letter.at < :dead_until)
order by letter.job_id
limit :limit
