-- Writes what keys have spent.
insert into tenure.limits (queue, key, spent, until_at)
select queue, key, spent, until_at
from json_populate_recordset(null::tenure.limits, :rows::json)
