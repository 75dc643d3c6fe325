-- Dead letters of an endpoint that are not handled: all, or those of these messages.
select number, sequence
from tenure_deliveries
where endpoint = :endpoint and outcome = 'dead' and handled_at is null
    and (:sequences is null or sequence in (select value from json_each(:sequences)))
order by number
