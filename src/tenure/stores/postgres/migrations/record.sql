-- Writes down that a migration was applied, and which code it still admits.
insert into tenure.migrations (number, name, checksum)
values (:number, :name, :checksum);

insert into tenure.meta (name, value)
values ('min_code_version', :min_code_version)
on conflict (name) do update set value = greatest(meta.value::integer, excluded.value::integer)::text;
