-- A page of messages, in the order of aggregates and numbers, after the given one.
select
    aggregate, sequence, id, topic, body, headers, job_id, at, attempts, delivered_at, dead_at, last_error
from tenure_outbox
where (aggregate, sequence) > (:aggregate, :sequence)
order by aggregate, sequence
limit :limit
