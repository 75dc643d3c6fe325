-- May also enqueue, and write messages.
grant insert on tenure.jobs, tenure.events, tenure.policies, tenure.deduplicated_requests, tenure.outbox to {role};
grant usage on sequence tenure.outbox_sequence to {role};
grant execute on function tenure.enqueue to {role};
