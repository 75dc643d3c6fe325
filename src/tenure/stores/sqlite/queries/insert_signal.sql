-- Keep what a job was told until it asks.
insert into tenure_signals (job_id, rev, name, payload, at)
values (:job_id, :rev, :name, :payload, :at)
