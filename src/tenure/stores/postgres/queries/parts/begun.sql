-- The time of the claim, and how much of the ready index this transaction has read so far.
clock as materialized (
    select tenure.clock() as now, pg_stat_get_xact_tuples_returned('tenure.jobs_ready'::regclass) as entries_read,
        pg_stat_get_xact_blocks_fetched('tenure.jobs_ready'::regclass) as pages_read
