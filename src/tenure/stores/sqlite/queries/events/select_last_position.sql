-- The position of the last row of events; 0 in an empty log.
select coalesce(max(position), 0) from tenure_events
