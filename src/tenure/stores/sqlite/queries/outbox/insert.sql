-- Inserts a message under the next sequence number of its aggregate.
insert into tenure_outbox (aggregate, sequence, id, topic, body, headers, job_id, correlation_id, trace, at)
values (:aggregate, :sequence, :id, :topic, :body, :headers, :job_id, :correlation_id, :trace, :at)
