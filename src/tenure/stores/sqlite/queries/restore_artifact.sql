-- Keep an artifact as it was. Refused where the job has used its name before.
insert into tenure_artifacts (job_id, name, attempt, media_type, body, bytes, at)
values (:job_id, :name, :attempt, :media_type, :body, :bytes, :at)
