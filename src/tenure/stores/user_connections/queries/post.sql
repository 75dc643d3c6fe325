-- Writes messages of no job inside the caller's transaction: JSON in, JSON out. An id that is in use is returned.
select tenure.post_within(cast(:request as text))
