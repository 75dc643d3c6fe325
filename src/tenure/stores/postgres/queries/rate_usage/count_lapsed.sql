-- How many rows of rate usage have expired.
select count(*)
from tenure.rate_usage usage
where usage.until_at <= :before::timestamptz
