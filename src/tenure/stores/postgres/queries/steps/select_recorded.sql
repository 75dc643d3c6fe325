-- The steps that are recorded under these keys of these jobs.
select step.*
from unnest(:ids::uuid[], :keys::text[]) wanted(job_id, key)
join tenure.steps step on step.job_id = wanted.job_id and step.key = wanted.key
