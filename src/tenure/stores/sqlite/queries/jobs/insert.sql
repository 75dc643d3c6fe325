-- Inserts new jobs, after their enqueued events. All other columns have their defaults.
-- Refused where the id, the request id or a live dedupe key is in use.
insert into tenure_jobs (
    -- each new job column: {}
)
values (
    -- each new job column: :{}
)
