-- For each aggregate, the last message before a sequence that was attempted for the endpoint; null: none was.
select (
        select max(delivery.sequence)
        from tenure_deliveries delivery
        where delivery.endpoint = :endpoint
            and delivery.aggregate = json_extract(stream.value, '$[0]')
            and delivery.sequence < json_extract(stream.value, '$[1]')
    )
from json_each(:streams) stream
order by stream.key
