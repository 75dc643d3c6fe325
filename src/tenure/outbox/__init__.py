"""Delivers the messages that committed work has written to the outbox."""
