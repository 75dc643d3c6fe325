-- Locks claims, in one order for every transaction: of two that remove the last two jobs of a claim, the second waits,
-- and then sees that no job is left.
select claim.request_id
from tenure.claims claim
where claim.request_id = any (:request_ids::text[])
order by claim.request_id
for update
