-- Keep a policy under the id that is made of its body.
insert into tenure_policies (id, body)
select :id, :body
where not exists (select 1 from tenure_policies where id = :id and body = :body)
