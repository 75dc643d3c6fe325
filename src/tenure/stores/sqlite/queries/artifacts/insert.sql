-- Inserts an artifact.
-- No row: the job already has an artifact of this name.
insert into tenure_artifacts (job_id, name, attempt, media_type, body, bytes, at)
values (:job_id, :name, :attempt, :media_type, :body, :bytes, :at)
on conflict (job_id, name) do nothing
