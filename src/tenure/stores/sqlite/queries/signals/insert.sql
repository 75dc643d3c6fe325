-- Inserts a signal, after its event.
insert into tenure_signals (job_id, rev, name, payload, at)
values (:job_id, :rev, :name, :payload, :at)
