-- The signals that one job was sent, in order.
select * from tenure.signals where job_id = :job_id order by rev
