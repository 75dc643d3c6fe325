-- Inserts an artifact.
insert into tenure_artifacts (job_id, name, attempt, media_type, body, bytes, at)
values (:job_id, :name, :attempt, :media_type, :body, :bytes, :at)
