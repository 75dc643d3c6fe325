"""The lifecycle of a job as pure code: statuses, transition table, `decide`, `evolve`, `fold`, records, backoff.

It does no I/O, reads no clock, draws no random number, sets no lease length and never parses a dedupe key.
"""
