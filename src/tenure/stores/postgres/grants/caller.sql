-- May call the public functions, and nothing else: it reads no table.
revoke all on all tables in schema tenure from {role};
revoke execute on function tenure.enqueue, tenure.signal from {role};
grant usage on schema tenure to {role};
grant execute on function tenure.enqueue, tenure.signal to {role};
