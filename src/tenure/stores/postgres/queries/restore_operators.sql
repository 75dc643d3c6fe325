-- Writes what operators did, in this order.
insert into tenure.operator_log (at, actor, action, job_id, detail)
select noted.at, noted.actor, noted.action, noted.job_id, noted.detail
from json_array_elements(:rows::json) with ordinality element(value, number)
cross join lateral json_populate_record(null::tenure.operator_log, element.value) noted
order by element.number
