-- Whether the file has a tenure schema. Null means not.
select max(name)
from sqlite_master
where type = 'table' and name = 'tenure_migrations'
