-- Continues the sequence after the messages that an import has written.
select setval('tenure.outbox_sequence', greatest(nextval('tenure.outbox_sequence'),
    (select coalesce(max(sequence), 0) + 1 from tenure.outbox)))
