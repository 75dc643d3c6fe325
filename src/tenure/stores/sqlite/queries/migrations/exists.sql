-- The name of the migrations table. Null: the file has no tenure schema.
select max(name)
from sqlite_master
where type = 'table' and name = 'tenure_migrations'
