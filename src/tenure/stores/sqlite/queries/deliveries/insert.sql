-- Records an attempt to deliver a message.
insert into tenure_deliveries (endpoint, aggregate, sequence, attempt, at, outcome, status, duration_ms, error)
values (:endpoint, :aggregate, :sequence, :attempt, :at, :outcome, :status, :duration_ms, :error)
