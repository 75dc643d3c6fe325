-- Write a message with what has become of it. Refused where its number or its id is taken.
insert into tenure_outbox (
    aggregate, sequence, id, topic, body, headers, job_id, at, attempts, delivered_at, dead_at, last_error
)
values (
    :aggregate, :sequence, :id, :topic, :body, :headers, :job_id, :at, :attempts, :delivered_at, :dead_at, :last_error
)
