-- Removes a terminal job's content. The session must be set to write as erasure. No row: not a terminal job.
with erased as (
    update tenure.jobs job
    set payload = null, tags = null, result = null, partial_result = null, error = null, last_error = null,
        progress = null, progress_message = null, erased_at = greatest(tenure.clock(), job.updated_at)
    where job.id = :job_id::uuid
      and job.finished_at is not null
      and job.erased_at is null
    returning job.*
),
events as (
    update tenure.events event
    set detail = null
    from erased
    where event.job_id = erased.id
      and event.detail is not null
      and event.type in ('progress', 'retry_scheduled', 'failed', 'dead_lettered')
),
letters as (update tenure.dead_letters letter set last_error = null from erased where letter.job_id = erased.id),
steps as (
    update tenure.steps step set result = null, error = null, undo = null from erased where step.job_id = erased.id
),
signals as (update tenure.signals signal set payload = null from erased where signal.job_id = erased.id),
messages as (
    update tenure.outbox message set body = 'null', headers = null from erased where message.job_id = erased.id
),
artifacts as (delete from tenure.artifacts artifact using erased where artifact.job_id = erased.id),
noted as (
    insert into tenure.operator_log (actor, action, job_id, detail)
    select :actor::text, 'erase', erased.id, :reason::text from erased
)
select erased.* from erased
