-- Pauses a queue. No row: it is paused already.
insert into tenure_queues (name, paused_at, updated_at)
values (:name, :now, :now)
on conflict (name) do update set paused_at = excluded.paused_at, updated_at = excluded.updated_at
where paused_at is null
