"""Durable jobs and workflows whose lifecycle is a proven state machine."""

__version__ = "0.1.0"
