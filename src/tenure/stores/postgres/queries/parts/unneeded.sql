      not exists (select from tenure.jobs job where job.id = message.job_id)
      and not exists (
          select from tenure.deliveries delivery
          where delivery.sequence = message.sequence
            and ((delivery.outcome = 'dead' and delivery.handled_at is null) or delivery.at > :before::timestamptz)
      )
      and not exists (
          select from tenure.pending pending
          where (pending.only_sequence = 0 and pending.aggregate = message.aggregate
                 and pending.position < message.sequence)
             or pending.only_sequence = message.sequence
      )
