-- Writes steps. Refused where a job has a step with this key.
insert into tenure_steps (
    -- each step column: {}
)
values (
    -- each step column: :{}
)
