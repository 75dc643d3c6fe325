-- Write how far a stream has come. Nobody holds it. Refused where the aggregate has one already.
insert into tenure_streams (aggregate, written, delivered, failures, due_at)
values (:aggregate, :written, :delivered, :failures, :due_at)
