-- The migrations that were applied, each with its checksum at that time.
select number, checksum
from tenure_migrations
order by number
