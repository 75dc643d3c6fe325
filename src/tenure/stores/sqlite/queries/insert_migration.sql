-- Note that a migration was applied.
insert into tenure_migrations (number, name, checksum, applied_at)
values (:number, :name, :checksum, :applied_at)
