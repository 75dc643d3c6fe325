-- Policies by their numbers.
select id, body from tenure.policies where id = any (:ids::integer[])
