-- Reserves the next sequence numbers of an aggregate. The write lock is held until the commit.
insert into tenure_streams (aggregate, written, due_at)
values (:aggregate, :count, :at)
on conflict (aggregate) do update
set written = written + excluded.written,
    due_at = ifnull(due_at, excluded.due_at)
