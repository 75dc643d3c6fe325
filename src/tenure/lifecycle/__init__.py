"""The lifecycle of a job as pure code: statuses, the table, `decide`, records, backoff and `fold`.

Nothing here does I/O, reads a clock or draws a random number, and nothing here knows how long a lease should be or
what a dedupe key means.
"""
