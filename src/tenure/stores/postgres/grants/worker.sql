-- May enqueue, run, change and remove jobs, queues and schedules. Guards refuse what breaks the lifecycle.
revoke all on all tables in schema tenure from {role};
revoke execute on function tenure.enqueue, tenure.signal from {role};
grant usage on schema tenure to {role};
grant select, insert, update, delete on all tables in schema tenure to {role};
grant usage on sequence tenure.outbox_sequence to {role};
revoke insert, update, delete on tenure.migrations, tenure.meta from {role};
revoke update, delete on tenure.operator_log from {role};
grant update (published_at) on tenure.operator_log to {role};
grant execute on function tenure.enqueue, tenure.signal to {role};
