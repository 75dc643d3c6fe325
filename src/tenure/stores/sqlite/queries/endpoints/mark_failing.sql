-- Records since when an endpoint fails, or that it does not. No change where that is recorded.
update tenure_endpoints
set failing_since_at = case when :failing then :now end, warned_at = null
where name = :name and (failing_since_at is null) = :failing
