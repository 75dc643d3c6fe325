-- The oldest schema version that code must know to use this file.
select value
from tenure_meta
where name = 'min_code_version'
