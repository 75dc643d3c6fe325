-- May deliver messages: read them and record deliveries. It reads and changes no job, and writes no message.
revoke all on all tables in schema tenure from {role};
revoke execute on function tenure.enqueue, tenure.signal from {role};
grant usage on schema tenure to {role};
grant select on tenure.migrations, tenure.meta, tenure.outbox, tenure.deliveries to {role};
grant select, update, delete on tenure.pending to {role};
grant select, insert, update on tenure.endpoints to {role};
grant select, insert, update, delete on tenure.subscriptions to {role};
grant insert on tenure.deliveries, tenure.operator_log to {role};
