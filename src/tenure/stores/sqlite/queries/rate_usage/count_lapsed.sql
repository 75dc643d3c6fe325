-- How many rows of rate usage have expired.
select count(*)
from tenure_rate_usage
where until_at <= :before
