-- Deletes claims that have no job left. Guard: they are locked by an earlier statement.
delete from tenure.claims claim
where claim.request_id = any (:request_ids::text[])
  and not exists (select from tenure.jobs job where job.id = any (claim.job_ids))
