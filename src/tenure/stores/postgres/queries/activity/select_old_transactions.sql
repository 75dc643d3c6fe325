-- Transactions that have been open for long: they hold back vacuum, and the tail of the log.
select pid, coalesce(nullif(application_name, ''), 'unnamed') as application, coalesce(state, 'unknown') as state,
    extract(epoch from clock_timestamp() - xact_start)::bigint as seconds
from pg_stat_activity
where xact_start < clock_timestamp() - :seconds::double precision * interval '1 second'
  and pid <> pg_backend_pid()
order by xact_start
limit 20
