-- How many jobs and events there are.
select (select count(*) from tenure.jobs) as jobs, (select count(*) from tenure.log) as events
