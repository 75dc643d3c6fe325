-- Records that these records of the operator log are published. The transaction also writes their messages.
with writer as materialized (select set_config('tenure.writer', 'store', true))
update tenure.operator_log record
set published_at = tenure.clock()
from writer
where record.id = any (:ids::bigint[])
  and record.published_at is null
