              -- Word for word as the index has it; due, of the kinds that are wanted, not committed, and not set aside.
              and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null
              and job.due_at <= moment.now
              and job.kind = any (:kinds::text[])
              and job.committed_at is null
              and job.id <> all (:excluded::uuid[])
