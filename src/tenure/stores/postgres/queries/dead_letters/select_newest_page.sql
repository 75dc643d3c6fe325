-- A page of dead letters newest job first. Every filter that is given must match.
select letter.*
from tenure.dead_letters letter
join tenure.jobs job on job.id = letter.job_id
where (:after::uuid is null or letter.job_id < :after::uuid)
  -- part: dead_letter_filters
order by letter.job_id desc
limit :limit
