-- A page of dead letters newest job first, before the given id. A null filter matches all.
select
    -- each dead letter column: letter.{}
from tenure_dead_letters letter
join tenure_jobs job on job.id = letter.job_id
where letter.job_id < :after
    -- part: dead_letter_filters
order by letter.job_id desc
limit :limit
