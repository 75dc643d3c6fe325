-- Saves one step under the lease of its job: what `insert.sql` does for a batch, without its arrays. A run whose steps follow
-- each other saves them one at a time.
-- Guard: that of `insert.sql`.
-- A row of nulls: the step was not written, and `insert.sql` finds out why.
with written as (
    insert into tenure.steps (job_id, key, kind, name, branch, ordinal, attempt, arguments_digest, status, code_version,
        started_at, finished_at, child_id, signal_rev, content_digest, digest, spend, undo, result, error)
    select locked.id, :key::text, :kind::text, :name::text, :branch::text, :ordinal::integer, locked.attempt,
        :argument_digest::text, :status::text, :code_version::text,
        finished.at - :duration_ms::bigint * interval '1 millisecond', finished.at, :child_id::uuid, :signal_rev::integer,
        :content_digest::text, :digest::text::numeric, :spend::text, :undo::text, :result::text, :error::text
    from (
        select job.id, job.token, job.status, job.attempt, job.updated_at, job.lease_expires_at, job.committed_at
        from tenure.jobs job
        where job.id = :id::uuid
        for key share skip locked
    ) locked
    cross join lateral (select greatest(tenure.clock(), locked.updated_at) as at) finished
    where locked.token = :token::uuid
      and locked.attempt = :attempt::integer
      and locked.status = 'running'
      and locked.committed_at is null
      and locked.lease_expires_at > finished.at
    on conflict (job_id, key) do nothing
    returning number, finished_at
)
select written.number, written.finished_at
from set_config('tenure.writer', 'store', true) writer
left join written on true
