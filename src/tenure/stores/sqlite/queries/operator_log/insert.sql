-- Records an operator's action.
insert into tenure_operator_log (at, actor, action, job_id, detail)
values (:at, :actor, :action, :job_id, :detail)
