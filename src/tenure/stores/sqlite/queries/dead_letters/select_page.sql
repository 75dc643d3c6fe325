-- A page of dead letters in the order of their jobs' ids, after the given id. A null filter matches all.
select
    -- each dead letter column: letter.{}
from tenure_dead_letters letter
join tenure_jobs job on job.id = letter.job_id
where letter.job_id > :after
    -- part: dead_letter_filters
order by letter.job_id
limit :limit
