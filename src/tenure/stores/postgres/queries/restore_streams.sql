-- Writes how far streams have come. Nobody holds them.
insert into tenure.streams (aggregate, written, delivered, failures, due_at)
select aggregate, written, delivered, failures, due_at
from json_populate_recordset(null::tenure.streams, :rows::json)
