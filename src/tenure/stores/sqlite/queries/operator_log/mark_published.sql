-- Records that these records of the operator log are published. The transaction also writes their messages.
update tenure_operator_log
set published_at = :now
where id in (select value from json_each(:ids))
    and published_at is null
