-- The position of the last event; 0 in an empty log.
select coalesce(max(position), 0) from tenure_events
