-- Appends events to the log.
-- Refused where a revision already has its event, where the lifecycle has no such transition, and for a second commit
-- of a job.
insert into tenure_events (
    -- each event column: {}
)
values (
    -- each event column: :{}
)
