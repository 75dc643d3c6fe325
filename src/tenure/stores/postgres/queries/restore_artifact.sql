-- Keeps an artifact as it was. Refused where the job has used its name before.
insert into tenure.artifacts (job_id, name, attempt, media_type, bytes, at, body)
values (:job_id, :name, :attempt, :media_type, :bytes, :at, :body)
