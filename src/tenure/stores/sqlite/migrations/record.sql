-- Writes down that a migration was applied, and which code it still admits. Times are microseconds since 1970.
insert into tenure_migrations (number, name, checksum, applied_at)
values (:number, :name, :checksum, cast((julianday('now') - 2440587.5) * 86400000000 as integer));

update tenure_meta
set value = max(value, cast(:min_code_version as integer))
where name = 'min_code_version';
