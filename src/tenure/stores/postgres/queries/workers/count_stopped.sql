-- How many workers `delete_stopped` would delete.
select count(*)
-- part: stopped
