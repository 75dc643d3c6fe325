        from tenure_pending pending
        join tenure_outbox message
            on (pending.only_sequence = 0 and message.aggregate = pending.aggregate and message.sequence > pending.position
                and message.sequence <= pending.last_sequence)
            or message.sequence = pending.only_sequence
        where pending.endpoint = endpoint.name
