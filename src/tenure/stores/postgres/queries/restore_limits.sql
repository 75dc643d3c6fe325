-- Writes what keys have spent.
insert into tenure.rate_usage (queue, key, spent, until_at)
select queue, key, spent, until_at
from json_populate_recordset(null::tenure.rate_usage, :rows::json)
