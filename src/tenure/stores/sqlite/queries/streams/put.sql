-- Records that an aggregate has messages.
insert into tenure_streams (aggregate, at)
values (:aggregate, :at)
on conflict (aggregate) do update set at = max(at, excluded.at)
