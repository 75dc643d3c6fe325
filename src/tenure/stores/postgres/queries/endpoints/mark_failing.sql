-- Records since when an endpoint fails, or that it does not. No change where that is recorded.
update tenure.endpoints
set failing_since_at = case when :failing::boolean then tenure.clock() end,
    warned_at = null
where name = :name::text
  and (failing_since_at is null) = :failing::boolean
