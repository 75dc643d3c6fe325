-- Writes the state that new events lead to, after the events.
-- Guard: the revision and the token that the change was decided upon.
-- Fewer rows than given: a row has changed since.
with changed (
    -- each mutable job column: {}
    , id, rev_before, token_before
) as (
    values (
        -- each mutable job column: :{}
        , :id, :rev_before, :token_before
    )
)
update tenure_jobs
set
    -- each mutable job column: {} = changed.{}
from changed
where tenure_jobs.id = changed.id
    and tenure_jobs.rev = changed.rev_before
    and tenure_jobs.token is changed.token_before
