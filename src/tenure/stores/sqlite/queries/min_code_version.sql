-- The oldest schema that code must know to work with this file.
select value
from tenure_meta
where key = 'min_code_version'
