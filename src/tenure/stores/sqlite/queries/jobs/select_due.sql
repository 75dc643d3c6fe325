-- The due jobs of one lane in claim order, without quarantined ones. The caller stops reading when it has enough.
select
    -- each job column: job.{}
-- part: due_of_lane
