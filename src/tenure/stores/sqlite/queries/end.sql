-- The position of the last event; 0 where there is none.
select coalesce(max(position), 0) from tenure_events
