-- Deletes a claim.
-- Guard: none of its jobs exists any more.
delete from tenure_claims
where request_id = :request_id
    and not exists (
        select 1
        from json_each(job_ids) won
        join tenure_jobs job on job.id = won.value
    )
