-- The first due jobs of one lane in claim order, with the columns that limits decide upon.
select job.id, job.partition_key, job.due_at, job.losses
-- part: due_of_lane
limit :limit
