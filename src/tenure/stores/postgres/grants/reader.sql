-- May read everything but secrets: the tokens of leases.
revoke all on all tables in schema tenure from {role};
revoke execute on function tenure.enqueue, tenure.signal from {role};
grant usage on schema tenure to {role};
grant select on all tables in schema tenure to {role};
revoke select on tenure.jobs, tenure.pending, tenure.log_cursors from {role};
do $$
declare
    visible text;
begin
    for visible in
        select format('grant select (%s) on %s to {role}', string_agg(quote_ident(attname), ', '), attrelid::regclass)
        from pg_attribute
        where attrelid in ('tenure.jobs'::regclass, 'tenure.pending'::regclass, 'tenure.log_cursors'::regclass)
          and attnum > 0
          and not attisdropped
          and attname <> 'token'
        group by attrelid
    loop
        execute visible;
    end loop;
end $$;
