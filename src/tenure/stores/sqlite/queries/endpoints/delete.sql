-- Removes an endpoint. No row: there is no such endpoint.
delete from tenure_endpoints
where name = :name
