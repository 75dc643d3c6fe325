-- Removes what an endpoint has yet to receive.
delete from tenure_pending
where endpoint = :endpoint
