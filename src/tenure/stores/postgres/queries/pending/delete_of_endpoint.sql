-- Removes what an endpoint has yet to receive.
delete from tenure.pending
where endpoint = :endpoint::text
