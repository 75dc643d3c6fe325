-- Blocks all other writers until the import has ended. Readers are not blocked.
lock table tenure.jobs, tenure.events, tenure.claims, tenure.deduplicated_requests, tenure.signals, tenure.dead_letters,
    tenure.artifacts, tenure.steps, tenure.budgets, tenure.reservations, tenure.streams, tenure.outbox, tenure.endpoints,
    tenure.subscriptions, tenure.pending, tenure.deliveries, tenure.queues, tenure.rate_usage, tenure.schedules,
    tenure.operator_log
in share row exclusive mode
