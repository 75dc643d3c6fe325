-- The signals of these jobs, each job's by revision.
select * from tenure.signals where job_id = any (:ids::uuid[]) order by job_id, rev
