-- Marks one job as committed inside the caller's transaction, or returns what it found instead. JSON in, JSON out.
-- Guard, in the function: the revision that was decided upon, the owner's token, and a lease that still runs.
select tenure.commit_within(cast(:request as text))
