"""Execution of attempts: invoke the function, decide the outcome, record it."""
