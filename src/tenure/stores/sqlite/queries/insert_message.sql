-- Put a message into the outbox, under the next number of its aggregate.
insert into tenure_outbox (aggregate, sequence, id, topic, body, headers, job_id, at)
values (:aggregate, :sequence, :id, :topic, :body, :headers, :job_id, :at)
