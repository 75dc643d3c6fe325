-- Inserts a policy under the id that is computed from its body. No row: it exists.
insert into tenure_policies (id, body)
select :id, :body
where not exists (select 1 from tenure_policies where id = :id and body = :body)
