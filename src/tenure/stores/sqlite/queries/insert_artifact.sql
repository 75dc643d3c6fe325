-- Keep an artifact. Nothing is written when the job has used its name before.
insert into tenure_artifacts (job_id, name, attempt, media_type, body, bytes, at)
values (:job_id, :name, :attempt, :media_type, :body, :bytes, :at)
on conflict (job_id, name) do nothing
