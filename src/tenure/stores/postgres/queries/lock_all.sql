-- Nobody else writes until the import has ended; whoever reads goes on.
lock table tenure.jobs, tenure.events, tenure.claims, tenure.answers, tenure.signals, tenure.dead_letters,
    tenure.artifacts, tenure.steps, tenure.streams, tenure.outbox, tenure.queues, tenure.limits, tenure.schedules,
    tenure.operator_log
in share row exclusive mode
