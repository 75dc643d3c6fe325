-- May also enqueue.
grant insert on tenure.jobs, tenure.events, tenure.policies, tenure.deduplicated_requests to {role};
