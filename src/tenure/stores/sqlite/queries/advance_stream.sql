-- Count messages that are about to be written for an aggregate; its numbers are then theirs. The row stays locked, as
-- all of the file does, until the commit.
insert into tenure_streams (aggregate, written, due_at)
values (:aggregate, :count, :at)
on conflict (aggregate) do update
set written = written + excluded.written,
    due_at = ifnull(due_at, excluded.due_at)
