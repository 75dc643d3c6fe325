-- Which migrations the file has seen, each with the checksum it had then.
select number, checksum
from tenure_migrations
order by number
