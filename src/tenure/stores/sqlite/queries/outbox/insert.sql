-- Writes a message under the next sequence, with the number of endpoints that subscribe to it. No row: its id is in use.
insert into tenure_outbox (id, aggregate, topic, body, headers, job_id, correlation_id, trace, at, endpoint_count)
select :id, :aggregate, :topic, :body, :headers, :job_id, :correlation_id, :trace, :at, (
    select count(distinct subscription.endpoint)
    from tenure_subscriptions subscription
    join (select :topic as topic) message on
    -- part: topic_matches
)
where not exists (select 1 from tenure_outbox where id = :id)
