-- Writes copies of steps for a job that this transaction has enqueued.
-- Guard: the job is at its first revision. No row means that it is not, and nothing is written.
insert into tenure.steps (job_id, key, kind, name, branch, ordinal, attempt, arguments_digest, status, code_version,
    started_at, finished_at, child_id, signal_rev, content_digest, digest, spend, undo, result, error)
select job.id, step.key, step.kind, step.name, step.branch, step.ordinal, step.attempt, step.arguments_digest, step.status,
    step.code_version, step.started_at, step.finished_at, step.child_id, step.signal_rev, step.content_digest,
    step.digest::numeric, step.spend, step.undo, step.result, step.error
from set_config('tenure.writer', 'store', true) writer
cross join unnest(:keys::text[], :kinds::text[], :names::text[], :branches::text[], :ordinals::integer[], :attempts::integer[],
        :argument_digests::text[], :statuses::text[], :code_versions::text[], :started_ats::timestamptz[],
        :finished_ats::timestamptz[], :child_ids::uuid[], :signal_revs::integer[], :content_digests::text[], :digests::text[],
        :spends::text[], :undos::text[], :results::text[], :errors::text[])
    with ordinality as step(key, kind, name, branch, ordinal, attempt, arguments_digest, status, code_version, started_at,
        finished_at, child_id, signal_rev, content_digest, digest, spend, undo, result, error, place)
join tenure.jobs job on job.id = :job_id::uuid and job.rev = 1
order by step.place
returning key
