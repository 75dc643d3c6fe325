-- Adds jobs inside the caller's transaction: JSON in, JSON out. Everything about races is in the function.
select tenure.enqueue_within(cast(:request as text))
