-- The signals that these jobs were sent, each job's in the order of revisions.
select * from tenure.signals where job_id = any (:ids::uuid[]) order by job_id, rev
