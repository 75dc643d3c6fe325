-- Nobody else writes until the import has ended; whoever reads goes on.
lock table tenure.jobs, tenure.events, tenure.claims, tenure.deduplicated_requests, tenure.signals, tenure.dead_letters,
    tenure.artifacts, tenure.steps, tenure.streams, tenure.outbox, tenure.queues, tenure.rate_usage, tenure.schedules,
    tenure.operator_log
in share row exclusive mode
