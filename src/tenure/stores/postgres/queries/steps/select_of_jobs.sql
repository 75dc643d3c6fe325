-- The steps of these jobs with the digest of their content, as `verify` compares them with the log. The content itself stays
-- here. The digest is that of `json_text.digest`; null where there is no content.
select step.job_id, step.key, step.number, step.kind, step.name, step.branch, step.ordinal, step.attempt,
    step.arguments_digest, step.status, step.code_version, step.started_at, step.finished_at, step.child_id,
    step.signal_rev, step.content_digest, step.digest, step.spend,
    case when num_nonnulls(step.result, step.error) > 0 then left(translate(encode(substring(
        sha256(convert_to(concat_ws(E'\n', step.result, step.error, step.undo), 'UTF8')) for 16), 'base64'), '+/', '-_'), 22)
    end as stored_digest
from tenure.steps step
where step.job_id = any (:ids::uuid[])
order by step.job_id, step.number
