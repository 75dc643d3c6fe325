              -- The first line as the index has it; then due, of the wanted kinds, not committed, and not quarantined.
              and job.status in ('queued', 'retry', 'waiting', 'stalled') and job.due_at is not null and job.pinned_version is null
              and job.due_at <= clock.now
              and job.kind = any (:kinds::text[])
              and job.committed_at is null
              and job.id <> all (:excluded::uuid[])
